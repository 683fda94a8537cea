"""`python training/train.py …`: the same as `hf-multisource train …`.

Commands on older result pages name recipes by their former paths, `training/configs/<name>.yaml`. This script replaces
such a path by the shipped recipe of the same name.
"""

import sys

from hf_multisource.cli.train import main
from hf_multisource.recipes.shipped import recorded_recipe

if __name__ == "__main__":
    main([recorded_recipe(argument) for argument in sys.argv[1:]])
