"""The command line that every stage shares: ``--config FILE.py[:ARG] --config.key=value --workdir DIR``.

Exit codes: 0 done, 2 bad input or config (one line on standard error), 75 stopped by a signal after saving, 1 a fault
of ours (with its traceback). The last line on standard output is one JSON object {"stage", "workdir", "metrics"}.
"""

import contextlib
import dataclasses
import errno
import io
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from absl import flags
from ml_collections import config_dict, config_flags

from denseir_jax.core import artifacts, config, console, signals
from denseir_jax.core.artifacts import Run
from denseir_jax.core.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAULT, EXIT_STOPPED, ConfigError, InputError, Stopped


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage of the two rivers.

    Attributes:
        name: "pretrain". config: its frozen dataclass. run: does the work and calls ``run.finish``; returns metrics.
        inputs: the artifacts that a config consumes, name -> path; hashed, recorded, and compared on a restart.
        summary: one sentence for --help. start: called before anything is touched; returns this process's index.
        complete: whether a finished folder needs no more work (training with more steps does).
        collective: whether several processes work on it together; else one does and the others find it done.
        workdir: where to write if no --workdir is given; None: it must be given. show: what to print of a finished
        folder, above the last line. place: (config, --workdir) -> the run folder, where one workdir holds several.
        holds_runs: its folder is made of run folders that are kept where another config overwrites it: each knows by itself
        whether it still serves.
    """

    name: str
    config: type
    run: Callable[[Run], Mapping[str, Any]]
    inputs: Callable[[Any], Mapping[str, str | Path]]
    summary: str
    start: Callable[[], int] = lambda: 0
    complete: Callable[[Run], bool] = lambda run: True
    collective: bool = False
    workdir: Callable[[Any], Path] | None = None
    show: Callable[[Path], None] = lambda workdir: None
    place: Callable[[Any, Path], Path] = lambda settings, workdir: workdir
    holds_runs: bool = False


def execute(stage: Stage, settings: Any, workdir: Path, overwrite: bool = False, process: int = 0) -> Mapping[str, Any]:
    """Run a stage in its folder, or return its metrics at once if it already finished with this config and inputs."""
    run = Run(workdir, stage.name, settings, primary=process == 0)
    try:
        run.open(stage.inputs(settings), overwrite, stage.holds_runs)
        metrics = run.finished()
        if metrics is not None and stage.complete(run):
            console.say(f"{stage.name}: already finished in {workdir}, skipped")
            return metrics
        if run.primary:
            (run.path / artifacts.MANIFEST).unlink(missing_ok=True)
            run.describe()
        return stage.run(run)
    finally:
        run.close()


def main(stage: Stage, *others: Stage) -> NoReturn:
    """Parse the command line, execute the stage, exit with the code that says how it ended.

    `others`: what runs instead where the card is theirs.
    """
    sys.exit(run_command(stage, sys.argv, *others))


def run_command(stage: Stage, argv: Sequence[str], *others: Stage) -> int:
    """As `main`, returning the exit code."""
    signals.listen()
    return exit_code(lambda: _run(stage, argv, others))


def _run(stage: Stage, argv: Sequence[str], others: Sequence[Stage]) -> None:
    launched = stage.name
    options, stage = _parse_command_line(stage, argv, others)
    if options is None:
        return
    settings: Any = config.parse(stage.config, options.config)
    if getattr(settings, "stage", stage.name) != stage.name:
        raise ConfigError(f"config.stage={settings.stage!r} is not what launch/{launched}.py runs")
    signals.check("nothing was begun")
    workdir = Path(options.workdir) if options.workdir or stage.workdir is None else stage.workdir(settings)
    metrics = execute(stage, settings, stage.place(settings, workdir), options.overwrite, stage.start())
    _print_result(stage, workdir, metrics)


def exit_code(work: Callable[[], None]) -> int:
    """Do the work; whatever way it ends becomes an exit code, and one line on standard error where it did not succeed."""
    try:
        work()
    except InputError as error:
        console.say(f"error: {error}")
        return EXIT_BAD_INPUT
    except Stopped as stop:
        console.say(str(stop))
        return EXIT_STOPPED
    except BrokenPipeError:  # the reader of --help or --print_config has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # or the interpreter complains once more when it ends
    except Exception as error:
        reason = _of_the_machine(error)
        if reason:
            console.say(f"error: {reason}")
            return EXIT_BAD_INPUT
        if sys.stderr is not None:
            traceback.print_exc()
        console.say("This is a fault of denseir_jax, not of your input; the lines above say where.")
        return EXIT_FAULT
    return EXIT_DONE


def _print_result(stage: Stage, workdir: Path, metrics: Mapping[str, Any]) -> None:
    """What the stage shows, and the JSON line. The work is done: a reader who has left is no failure."""
    try:
        stage.show(workdir)
        print(json.dumps({"stage": stage.name, "workdir": str(workdir), "metrics": artifacts.finite(metrics)}), flush=True)
    except OSError:
        console.say("warning: nobody reads standard output; the result is in the run folder")
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # or the interpreter complains once more when it ends


_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EIO)


def _of_the_machine(error: BaseException | None) -> str:
    """One line if an error, or what caused it, is a full disk, too little memory, a missing permission and the like; else empty."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _MACHINE:
            return f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
        if "No space left on device" in str(error):
            return "No space left on device"
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):  # of the host, of a device
            said = str(error).splitlines()[0] if str(error) else "out of memory"
            return f"{said[:200]}; take a smaller batch_size, more micro_batches or a memory_budget, or a smaller model or queue"
        error = error.__cause__ or error.__context__
    return ""


def _parse_command_line(stage: Stage, argv: Sequence[str], others: Sequence[Stage] = ()) -> tuple[flags.FlagValues | None, Stage]:
    """The options, or None if all is said already, and the stage whose card it is: `stage`, unless it is another's."""
    options = flags.FlagValues()
    config_flags.DEFINE_config_file("config", None, "Recipe card FILE.py[:ARG]; override a key by --config.key=value.", flag_values=options)
    flags.DEFINE_string("workdir", None, "Run folder: made if absent; the same command goes on where it stopped.", flag_values=options)
    flags.DEFINE_bool("overwrite", False, "Empty the run folder first if another config or other inputs made it.", flag_values=options)
    flags.DEFINE_bool("print_config", False, "Print the resolved config and stop.", flag_values=options)
    usage = f"{stage.summary}\n\nusage: python launch/{stage.name}.py --config FILE.py[:ARG] --workdir DIR [--config.key=value ...]\n"
    if any(word in ("--help", "-help", "-h", "--helpfull") for word in argv[1:]):
        print(usage + options.get_help() + _keys(stage))
        return None, stage
    _check_card_exists(argv)
    cleared = [word for word in argv if _NOTHING.fullmatch(word)]  # no typed flag takes the word None
    rest = _parse_flags(options, _card_first([word for word in argv if word not in cleared]))
    if rest:
        raise ConfigError(f"unexpected argument {rest[0]!r}; flags are written --name=value")
    if options.config is not None and not isinstance(options.config, config_dict.ConfigDict):
        raise ConfigError(f"the recipe card's get_config gives a {type(options.config).__name__}; expected card(a config)")
    if options.config is None:
        raise ConfigError(
            f"--config is missing: a recipe card, for example --config configs/.../FILE.py:ARG (see python launch/{stage.name}.py --help)"
        )
    stage = next((other for other in others if other.name == options.config.get("stage")), stage)
    for word in cleared:
        config.clear(options.config, word.removeprefix("--config.").removesuffix("=None"))
    if options.print_config:
        print(json.dumps(config.plain(config.parse(stage.config, options.config)), indent=1))
        return None, stage
    if options.workdir == "" or (options.workdir is None and stage.workdir is None):
        raise ConfigError("--workdir is missing: the folder that the run is written to")
    return options, stage


_NOTHING = re.compile(r"--config\.[\w.]+=None")


def _keys(stage: Stage) -> str:
    lines = ["\nTop-level config keys (--print_config shows all, with their values):"]
    lines += [f"  --config.{field.name}" for field in dataclasses.fields(stage.config)]
    return "\n".join(lines)


def _parse_flags(options: flags.FlagValues, argv: Sequence[str]) -> list[str]:
    """Parse; turn every way a flag or card can be wrong into one ConfigError."""
    swallowed = io.StringIO()
    saved, sys.argv = sys.argv, list(argv)  # config_flags looks for its overrides in sys.argv
    try:
        with contextlib.redirect_stderr(swallowed):
            return list(options(list(argv))[1:])
    except InputError:
        raise
    except flags.UnrecognizedFlagError as error:
        known = ["config", "workdir", "overwrite", "print_config"]
        raise ConfigError(config.unknown_key(f"--{error.flagname}", error.flagname, known).replace("config key", "flag")) from None
    except (AttributeError, KeyError) as error:
        raise ConfigError(_override_error(argv, error)) from None
    except FileNotFoundError as error:
        raise ConfigError(f"recipe card {error.filename} does not exist") from None
    except (Exception, SystemExit) as error:  # a card is a program: it can fail in any way
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]  # config_flags puts a whole traceback into some messages
        raise ConfigError(f"the command line or the recipe card cannot be used: {reason}") from None
    finally:
        sys.argv = saved


def _card_first(argv: Sequence[str]) -> list[str]:
    """The words with ``--config FILE`` before its overrides, where config_flags wants it."""
    words, card = list(argv), []
    for at, word in enumerate(words):
        if word in ("--config", "-config") or word.startswith(("--config=", "-config=")):
            end = at + (1 if "=" in word else 2)
            card, words[at:end] = words[at:end], []
            break
    return [*words[:1], *card, *words[1:]]


def _check_card_exists(argv: Sequence[str]) -> None:
    words = _config_words(argv)
    cards = [word.partition("=")[2] for word in words if word.startswith("--config=")]
    cards += [words[i + 1] for i, word in enumerate(words[:-1]) if word == "--config"]
    for card in cards:
        path = Path(card.partition(":")[0])
        if not path.is_file():
            raise ConfigError(f"recipe card {str(path)!r} {'is a folder' if path.is_dir() else 'does not exist'}; expected FILE.py[:ARG]")


def _override_error(argv: Sequence[str], error: Exception) -> str:
    """Name the override that does not exist and the nearest key that does, by loading the card without overrides."""
    bare = flags.FlagValues()
    config_flags.DEFINE_config_file("config", None, "", flag_values=bare)
    words = _config_words(argv)
    saved, sys.argv = sys.argv, ["", *[w for w in words if not w.startswith("--config.")]]
    try:
        bare(sys.argv)
    except Exception:  # the card itself fails: its own message says more
        return f"the recipe card fails: {error}"
    finally:
        sys.argv = saved
    for word in words:
        if word.startswith("--config."):
            path = word[len("--config.") :].split("=")[0]
            message = _unknown_in(bare.config, path)
            if message:
                return message
    return f"the recipe card fails: {type(error).__name__}: {error}"


def _config_words(argv: Sequence[str]) -> list[str]:
    words, take = [], False
    for word in argv[1:]:
        if word.startswith(("--config", "-config")):
            words.append(word.replace("-config", "--config", 1) if word.startswith("-c") else word)
            take = word in ("--config", "-config")
        elif take:
            words.append(word)
            take = False
    return words


def _paths(tree: config_dict.ConfigDict) -> Iterator[str]:
    """Every key of a card, with the groups above it."""
    for name, value in tree.items():
        yield name
        if isinstance(value, config_dict.ConfigDict):
            yield from (f"{name}.{inner}" for inner in _paths(value))


def _unknown_in(tree: Any, path: str) -> str:
    node = tree
    for part in path.split("."):
        if not isinstance(node, config_dict.ConfigDict):
            return f"unknown config key 'config.{path}': {part!r} is below a value, not a group"
        if part not in node:
            deeper = [f"config.{found}" for found in _paths(tree) if found.endswith(f".{part}")]
            if deeper:
                return f"unknown config key 'config.{path}': did you mean {' or '.join(map(repr, deeper[:3]))}?"
            return config.unknown_key(f"config.{path}", part, list(node))
        node = node[part]
    return ""
