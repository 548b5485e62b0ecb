"""The public names of `sonde.models`, each with the module that has it."""

from sonde.models.clip import CLIP as CLIP
from sonde.models.config import Config as Config
from sonde.models.decoder import Decoder as Decoder
from sonde.models.encoder import Encoder as Encoder
from sonde.models.generation import Generated as Generated
from sonde.models.generation import from_token as from_token
from sonde.models.generation import generate as generate
from sonde.models.loading import from_config as from_config
from sonde.models.loading import load as load
from sonde.models.saving import save as save
from sonde.models.sentences import sentence_vectors as sentence_vectors
from sonde.models.sites import SITES as SITES
from sonde.models.sites import SiteNames as SiteNames
from sonde.models.tokens import Tokenizer as Tokenizer
from sonde.models.vision import Vision as Vision
from sonde.models.weight_packages import path as path
from sonde.port.files import read_named_arrays as read_named_arrays
