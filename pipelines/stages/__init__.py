"""The stages of the chain, in its order, and which one makes which kind of artifact."""

from pipelines.stages.corpus import CORPUS
from pipelines.stages.dataset import DATASET
from pipelines.stages.evaluation import EVALUATION
from pipelines.stages.examples import EXAMPLES
from pipelines.stages.finetuning import FINETUNING
from pipelines.stages.pretraining import PRETRAINING
from pipelines.stages.vocabulary import VOCABULARY

CHAIN = (CORPUS, VOCABULARY, EXAMPLES, PRETRAINING, DATASET, FINETUNING, EVALUATION)
STAGES = {stage.kind: stage for stage in CHAIN}
