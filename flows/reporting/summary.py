"""The final screen: what was built and where, how good it is, and what to do next."""

import shlex
import shutil
import sys

from rich.console import Console
from rich.markup import escape

from flows.reporting.figures import figures_of
from flows.reporting.links import model_page
from flows.reporting.quantities import duration, memory
from flows.reporting.sections import headline
from flows.reporting.story import Story
from pipelines.core.redaction import redacted
from pipelines.tasks import family_title

_ASKED = {
    "tagging": "tag 'Some text.'",
    "question_answering": "answer 'Who?' 'Some text.'",
    "multiple_choice": "choose 'Some text' 'one end' 'another'",
    "regression": "rate 'Some text.'",
    "sentence_embedding": "embed 'Some text.'",
}
_LINE = 110  # longer texts are cut


def print_summary(story: Story, tracking_uri: str, *, services_run: bool = False) -> None:
    """Print the story of a run that went well; plain text where the output is no terminal.

    `tracking_uri` is the run's own tracker; `services_run`: the home's servers are up.
    """
    width = max(_LINE, shutil.get_terminal_size().columns)
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True, width=width)
    sections = (
        _stages(story),
        _figures(story),
        _fillings(story),
        _predictions(story),
        _models(story, tracking_uri),
        _notes(story),
        _next(story, tracking_uri, services_run),
    )
    for title, lines in sections:
        if lines:
            console.print(f"\n[bold]{escape(title)}[/bold]")
            for line in lines:
                console.print(f"  {escape(line)}")
    console.print()


def _stages(story: Story) -> tuple[str, list[str]]:
    title = (
        f"{story.recipe.name}: {duration(story.seconds)}, "
        f"at most {memory(story.peak_bytes)} of memory"
    )
    rows = [
        f"{record.name:<28} {record.outcome:<7} {duration(record.seconds):>12} "
        f"{memory(record.peak_bytes):>9}  "
        + (headline(record.artifact) if record.artifact is not None else "")
        for record in story.records
    ]
    place = redacted(story.recipe.place.store_url())
    return title, [*(row.rstrip() for row in rows), f"in {place}"]


def _figures(story: Story) -> tuple[str, list[str]]:
    return "Reached, beside what it had to beat", [
        f"{figure.name:<32} {figure.sentence()}" for figure in figures_of(story)
    ]


def _fillings(story: Story) -> tuple[str, list[str]]:
    lines = []
    for filled in story.filled_masks:
        candidates = ", ".join(f"{c.piece} {c.probability:.0%}" for c in filled.candidates)
        lines.append(_cut(filled.text))
        lines.append(f"    hidden: {filled.hidden}   the encoder says: {candidates}")
    return "The encoder fills gaps in sentences it never saw", lines


def _predictions(story: Story) -> tuple[str, list[str]]:
    lines = []
    for expected, answer in story.predictions:
        lines.append(_cut(answer.text))
        lines.append(
            f"    label: {expected}   the model says: {answer.label} {answer.probability:.0%}"
        )
    return "The fine-tuned model labels texts it never saw", lines


def _models(story: Story, tracking_uri: str) -> tuple[str, list[str]]:
    lines = []
    promoted = {(move.name, move.version): move.alias for move in story.promotions}
    for model in story.models:
        page = model_page(tracking_uri, model)
        alias = promoted.get((model.name, model.version))
        what = f"now models:/{model.name}@{alias}" if alias else "registered before; no alias moved"
        lines.append(f"{family_title(model.kind):<18} {model.uri:<36} {what}")
        if page is not None:
            lines.append(f"{'':<18} {page}")
    lines.extend(
        f"{proof.model.uri}, loaded in a process of its own, repeated its accuracy "
        f"({proof.comparison})"
        for proof in story.verifications
    )
    lines.extend(
        f"models:/{judgement.name}/{judgement.version}: {judgement.reason}"
        for judgement in story.judgements
    )
    return "Registered", lines


def _notes(story: Story) -> tuple[str, list[str]]:
    return "On the way", story.notes


def _next(story: Story, tracking_uri: str, services_run: bool) -> tuple[str, list[str]]:
    named = story.recipe.place.home  # else the commands find the home as this run did
    home = f" --home {shlex.quote(named)}" if named else ""
    commands = []
    for model in story.models:
        if model.kind == "encoder":
            commands.append(
                (f"bertsmith fill-mask 'This is a [MASK].' --model {model.name}{home}", "")
            )
        else:
            asked = _ASKED.get(model.kind, "predict 'Some text.'")
            commands.append((f"bertsmith {asked} --model {model.name}{home}", ""))
    if services_run:
        commands.append((f"bertsmith down{home}", "stop the servers"))
    elif not tracking_uri.startswith("http"):
        commands.append((f"bertsmith up{home}", "start both web pages, Prefect's and MLflow's"))
    own_text = f"bertsmith run --corpus 'my/texts/*.txt'{home}"
    commands.append((own_text, "do the same with your own text"))
    if story.flow_run_url:
        commands.append((story.flow_run_url, "this run's page"))
    return "Next", [f"{command:<72} {what}".rstrip() for command, what in commands]


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LINE else f"{line[: _LINE - 1]}…"
