"""Leave out modules whose library is not installed; `--doctest-modules` would import them."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("avalanche") else ["metareplay/integrations/avalanche.py"]
