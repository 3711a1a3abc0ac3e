"""Read other libraries' checkpoints as paradigms with equal scores; write them if the format allows this.

Each format recognises a folder by its files and reads all of the folder's parts. A part that no paradigm
supports causes an error that names the part. Pickled weights are read only on request, by `torch.load` with
weights_only, which runs no code.
"""

from paradigms.saving.hub import model_card, push_to_hub
from paradigms.saving.layouts import FORMATS, read_checkpoint
from paradigms.saving.library import wrap
