"""Learners inside other libraries: river, scikit-learn and Avalanche. Only the module for a library imports it.

- `metareplay.integrations.river`: `RiverClassifier`, `RiverRegressor`
- `metareplay.integrations.scikit_learn`: `PartialFitClassifier`, `PartialFitRegressor`
- `metareplay.integrations.avalanche`: `LearnerStrategy`
"""
