"""`python training/train.py …`: the same as `hf-multisource train …`.

The commands on the result pages name recipes as `training/configs/<name>.yaml`, where they were at the time. Here, such
a path means the shipped recipe of that name.
"""

import sys

from hf_multisource.cli.train import main
from hf_multisource.recipes.catalogue import recorded_recipe

if __name__ == "__main__":
    main([recorded_recipe(argument) for argument in sys.argv[1:]])
