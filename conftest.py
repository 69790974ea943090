"""Leave out modules whose library is not installed; `--doctest-modules` would import them."""

from importlib.util import find_spec

NEEDED = {"avalanche": "metareplay/integrations/avalanche.py", "transformers": "metareplay/loops/hugging_face.py"}
collect_ignore = [module for library, module in NEEDED.items() if not find_spec(library)]
