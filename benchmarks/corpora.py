"""Corpus, vocabulary and examples of different real corpora: what their manifests say.

    python benchmarks/corpora.py                     # all of them
    python benchmarks/corpora.py wikitext multilingual

Each is built with 1, 2 and 4 workers, and again with a kill in each stage: all digests must be
equal. Text is read from ../shared/data; the MediaWiki dump is made of WikiText-2's articles, `s3`
uses moto's server.
"""

import argparse
import bz2
import gzip
import hashlib
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import ROOT, one_of, report
from pipelines.artifacts import Artifact, ArtifactStore
from pipelines.cluster.connection import connect, disconnect
from pipelines.stage import Progress, StageContext
from pipelines.stages.corpus.settings import CorpusSettings, MediaWiki, PlainText
from pipelines.stages.corpus.stage import build_corpus
from pipelines.stages.examples.stage import ExampleSettings, build_examples
from pipelines.stages.vocabulary.settings import VocabularySettings
from pipelines.stages.vocabulary.stage import build_vocabulary

TEXTS = ROOT.parent / "shared" / "data" / "corpus"
WORKERS = (1, 2, 4)
EXAMPLES = ExampleSettings(max_tokens=128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The settings of the three data stages for one corpus."""

    corpus: CorpusSettings
    vocabulary: VocabularySettings

    def build(self, context: StageContext) -> list[Artifact]:
        corpus = build_corpus(self.corpus, context)
        vocabulary = build_vocabulary(self.vocabulary, corpus, context)
        return [corpus, vocabulary, build_examples(EXAMPLES, corpus, vocabulary, context)]


def novels(_: Path) -> Chain:
    source = PlainText(paths=(str(TEXTS / "english_novels" / "*_*.txt"),))
    return Chain(
        corpus=CorpusSettings(sources=(source,)), vocabulary=VocabularySettings(size=30_522)
    )


def wikitext(_: Path) -> Chain:
    source = PlainText(paths=(str(TEXTS / "wikitext-2" / "*.txt"),), layout="headings")
    return Chain(
        corpus=CorpusSettings(sources=(source,)), vocabulary=VocabularySettings(size=16_000)
    )


def multilingual(_: Path) -> Chain:
    sources = tuple(
        PlainText(paths=(str(path),), layout="sentences", name=path.stem)
        for path in sorted((TEXTS / "multilingual").glob("*.txt"))
    )
    vocabulary = VocabularySettings(
        size=30_000, lowercase=False, language_smoothing=0.7, character_coverage=1.0
    )
    return Chain(corpus=CorpusSettings(sources=sources), vocabulary=vocabulary)


def mediawiki(folder: Path) -> Chain:
    path = folder / "pages-articles.xml.bz2"
    path.write_bytes(bz2.compress(dump((TEXTS / "wikitext-2" / "valid.txt").read_text()).encode()))
    return Chain(
        corpus=CorpusSettings(sources=(MediaWiki(paths=(str(path),)),)),
        vocabulary=VocabularySettings(size=8_192),
    )


def s3(_: Path) -> Chain:
    source = PlainText(paths=("s3://bertsmith/novels/*.txt.gz",))
    return Chain(
        corpus=CorpusSettings(sources=(source,)), vocabulary=VocabularySettings(size=8_192)
    )


CORPORA = {each.__name__: each for each in (novels, wikitext, multilingual, mediawiki, s3)}


def dump(text: str) -> str:
    """WikiText's articles as a MediaWiki dump, with markup and with pages that are no articles."""
    pages = []
    parts = re.split(r"^ = ([^=]+) = $", text, flags=re.MULTILINE)[1:]
    for number, (title, body) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        body = re.sub(r"^ (=+ .+ =+) $", r"=\1=", body, flags=re.MULTILINE)
        words = body.split(" ")
        words[20:20] = ["{{cite|a=1|b={{nested}}}}", "<ref name='x'>not prose</ref>", "'''bold'''"]
        words[40:40] = ["[[File:picture.png|thumb|not prose]]", "[[link target|shown words]]"]
        pages.append((title.strip(), 0, " ".join(words)))
        if number % 5 == 0:
            pages.append((f"{title.strip()} (old)", 0, f"#REDIRECT [[{title.strip()}]]"))
            pages.append((f"Talk:{title.strip()}", 1, "Talk is not an article. " * 20))
    body = "".join(
        f"<page><title>{escape(title)}</title><ns>{namespace}</ns><id>{number + 1}</id>"
        + (f"<redirect title='{escape(title[:-6])}' />" if page.startswith("#REDIRECT") else "")
        + f"<revision><id>{number + 1}</id><model>wikitext</model><format>text/x-wiki</format>"
        f"<text xml:space='preserve'>{escape(page)}</text></revision></page>\n"
        for number, (title, namespace, page) in enumerate(pages)
    )
    return (
        "<mediawiki xmlns='http://www.mediawiki.org/xml/export-0.11/' version='0.11' "
        f"xml:lang='en'>\n{body}</mediawiki>\n"
    )


def digest(artifacts: list[Artifact]) -> str:
    """One digest over the checksums of all files of all artifacts."""
    files = [
        (artifact.kind, name, record.sha256)
        for artifact in artifacts
        for name, record in sorted(artifact.manifest.files.items())
    ]
    return hashlib.sha256(repr(files).encode()).hexdigest()[:16]


class KillAt:
    """Kills its own process with SIGKILL at the `count`-th progress report of a stage."""

    def __init__(self, stage: str, count: int) -> None:
        self.stage, self.remaining = stage, count

    def __call__(self, progress: Progress) -> None:
        self.remaining -= progress.stage == self.stage and 0 < progress.fraction < 1
        if not self.remaining:
            os.kill(os.getpid(), signal.SIGKILL)


def build_killed(chain: Chain, store: str, folder: Path) -> tuple[list[Artifact], int]:
    """Build in processes that are killed once in each of the three stages, then complete it."""
    job = folder / "chain.pickle"
    job.write_bytes(pickle.dumps(chain))
    num_killed = 0
    for stage in ("corpus", "vocabulary", "examples"):
        done = subprocess.run([sys.executable, __file__, "--kill-in", stage, str(job), store])
        num_killed += done.returncode == -signal.SIGKILL
    return chain.build(StageContext(store=ArtifactStore(store), num_workers=2)), num_killed


def build_until_killed(stage: str, job: str, store: str) -> None:
    chain = pickle.loads(Path(job).read_bytes())
    context = StageContext(store=ArtifactStore(store), num_workers=2, observe=KillAt(stage, 2))
    chain.build(context)
    disconnect()


@contextmanager
def object_store() -> Iterator[None]:
    """An S3 server on the loopback with compressed novels in a bucket."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }  # fmt: skip
    client = boto3.client("s3")
    client.create_bucket(Bucket="bertsmith")
    for path in sorted((TEXTS / "english_novels").glob("B*.txt")):
        body = gzip.compress(path.read_bytes(), mtime=0)
        client.put_object(Bucket="bertsmith", Key=f"novels/{path.name}.gz", Body=body)
    try:
        yield
    finally:
        server.stop()


def lines_of(name: str, runs: dict[str, list[Artifact]], num_killed: int) -> list[str]:
    """The figures of one corpus from its manifests, and the digests of its runs."""
    corpus, vocabulary, examples = runs["2 workers"]
    texts, tokens, train = corpus.statistics, vocabulary.statistics, examples.statistics["train"]
    size = sum(examples.manifest.files[each].bytes for each in examples.names("train-"))
    lines = [f"## {name}", "", "| | |", "|---|---|"]
    for key, value in {
        "corpus": corpus.fingerprint,
        "documents, train + held-out": f"{texts['train']['documents']:,} + "
        f"{texts['heldout']['documents']:,}",
        "sentences": f"{texts['train']['sentences']:,}",
        "words": f"{texts['train']['words']:,}",
        "bytes": f"{texts['train']['bytes']:,}",
        "dropped": texts["dropped"],
        "languages of samples": texts["sample_languages"],
        "vocabulary": f"{vocabulary.fingerprint}, {tokens['size']:,} tokens",
        "held-out: tokens per word, unknown": f"{tokens['heldout']['tokens_per_word']}, "
        f"{tokens['heldout']['unknown_share']:.4%}",
        "examples": f"{examples.fingerprint}, {train['examples']:,} of {train['mean_tokens']} "
        f"tokens, {size / train['tokens']:.2f} bytes per token",
        "seconds, 2 workers": ", ".join(
            f"{each.kind} {each.manifest.build_seconds:.1f}" for each in runs["2 workers"]
        ),
        **{f"digest, {run}": f"`{digest(artifacts)}`" for run, artifacts in runs.items()},
        "killed": f"{num_killed} times",
    }.items():
        lines.append(f"| {key} | {value} |")
    return [*lines, ""]


def main() -> None:
    if sys.argv[1:2] == ["--kill-in"]:
        build_until_killed(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("corpora", nargs="*", default=list(CORPORA), type=one_of(CORPORA))
    lines = []
    with tempfile.TemporaryDirectory() as name, object_store():
        connect()
        for corpus in parser.parse_args().corpora:
            folder = Path(name) / corpus
            folder.mkdir()
            chain = CORPORA[corpus](folder)
            stores = "s3://bertsmith/stores" if corpus == "s3" else str(folder / "stores")
            runs = {}
            for num_workers in WORKERS:
                store = ArtifactStore(f"{stores}/{num_workers}")
                context = StageContext(store=store, num_workers=num_workers)
                runs[f"{num_workers} workers"] = chain.build(context)
            started = time.perf_counter()
            runs["killed"], num_killed = build_killed(chain, f"{stores}/killed", folder)
            print(f"{corpus}: killed and resumed in {time.perf_counter() - started:.0f} s")
            lines += lines_of(corpus, runs, num_killed)
        disconnect()
    report("corpora", "Corpora, and the same bytes every time", lines)


if __name__ == "__main__":
    main()
