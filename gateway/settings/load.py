"""A configuration file to `Settings`, or every fault at once; and what the command line may change.

Reads the file and nothing else; the environment and the clock are arguments.  Of the environment it
knows three names: LOCKGATE_CONFIG (the command line's), LOCKGATE_STATE_DIR and LOCKGATE_MODELS_DIR.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gateway.settings.decode import decode
from gateway.settings.faults import Fault, SettingsError
from gateway.settings.rules import CHECKS, cross, notices
from gateway.settings.shape import Audit, File, Listen, Mode, ModelName, Settings

CONFIG_BYTES_MAX = 4 << 20
ENV_CONFIG = "LOCKGATE_CONFIG"
ENV_STATE_DIR = "LOCKGATE_STATE_DIR"
ENV_MODELS_DIR = "LOCKGATE_MODELS_DIR"


def load(path: Path, env: Mapping[str, str], *, now_s: int | None = None) -> Settings:
    """Production settings.  With `now_s`, a model whose prices all lie in the future is refused too.
    Raises SettingsError with all faults."""
    source = str(path)
    file = parse(_read(path, source), source, now_s=now_s)
    settings = Settings(
        mode=Mode.PRODUCTION,
        source=source,
        listen=file.listen,
        state=file.state,
        audit=file.audit,
        models=file.models,
        prices=file.prices,
        issuers=file.issuers,
        classes=dict(file.classes),
        plans=dict(file.plans),
        tenants=dict(file.tenants),
        webhooks=file.webhooks,
        retention=file.retention,
        models_dir=_models_dir(env, file.state.dir),
        notices=notices(file),
    )
    state_dir = env.get(ENV_STATE_DIR)
    return with_state_dir(settings, Path(state_dir), env) if state_dir else settings


def parse(text: str, source: str, *, now_s: int | None = None) -> File:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(
            source, [Fault("(file)", f"is not TOML: {error}", "TOML 1.0", "Correct that line.")]
        ) from None
    except RecursionError:
        raise SettingsError(
            source, [Fault("(file)", "is nested too deeply", "TOML 1.0", "Flatten it.")]
        ) from None
    draft = decode(
        data,
        File,
        CHECKS,
        listen=Listen(hosts=("localhost",)),
        models=(),
        prices=(),
        issuers=(),
        plans={},
        tenants={},
    )
    file = draft.value
    faults = [*draft.faults, *cross(file, draft.incomplete)]
    if now_s is not None and not {"models", "prices"} & draft.incomplete:
        faults += _priced_now(file, now_s)
    if faults:
        raise SettingsError(source, faults)
    return file


def with_state_dir(settings: Settings, state_dir: Path, env: Mapping[str, str]) -> Settings:
    """Everything the server writes, moved to `state_dir`: whatever lay in the old folder."""
    old = settings.state
    url = old.database_url
    file = url.removeprefix("sqlite:///")
    moved = None if file == url else _moved(Path(file), old.dir, state_dir)
    state = msgspec.structs.replace(
        old,
        dir=state_dir,
        database_url=url if moved is None else f"sqlite:///{moved}",
        root_key_file=_moved(old.root_key_file, old.dir, state_dir) or old.root_key_file,
    )
    audit = Audit(
        dirs=tuple(_moved(each, old.dir, state_dir) or each for each in settings.audit.dirs)
    )
    return msgspec.structs.replace(
        settings, state=state, audit=audit, models_dir=_models_dir(env, state_dir)
    )


def with_model(
    settings: Settings,
    path: str | None,
    served_name: str | None = None,
    context_tokens: int | None = None,
) -> Settings:
    """The one model: from another place, answering to one more name, with another context.  What is None stays.
    Raises SettingsError where there are several models, and for what is no name."""
    given = {"--model": path, "--served-model-name": served_name, "--max-model-len": context_tokens}
    said = [option for option, value in given.items() if value is not None]
    if not said:
        return settings
    if len(settings.models) != 1:
        names = ", ".join(model.name for model in settings.models)
        raise _one_fault(
            settings, said[0], f"could be any of {names}", "one model", "Say it in the file."
        )
    model = settings.models[0]
    aliases = model.aliases
    if served_name is not None and served_name not in {model.name, *aliases}:
        try:
            aliases = (*aliases, msgspec.convert(served_name, ModelName))
        except msgspec.ValidationError:
            raise _one_fault(
                settings,
                "--served-model-name",
                "is no name of a model",
                "as org/name-1.5",
                "Choose another.",
            ) from None
    changed = msgspec.structs.replace(
        model,
        path=path or model.path,
        aliases=aliases,
        context_tokens=context_tokens or model.context_tokens,
    )
    return msgspec.structs.replace(settings, models=(changed,))


def _one_fault(settings: Settings, option: str, *words: str) -> SettingsError:
    return SettingsError(settings.source, [Fault(option, *words)])


def _read(path: Path, source: str) -> str:
    try:
        with path.open("rb") as stream:
            raw = stream.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        wrong = f"cannot be read: {error.strerror}"
        raise SettingsError(
            source, [Fault("(file)", wrong, "a readable TOML file", "Check the path and its mode.")]
        ) from None
    if len(raw) > CONFIG_BYTES_MAX:
        raise SettingsError(
            source, [Fault("(file)", "is too large", "at most 4 MiB", "Is it the right file?")]
        )
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise SettingsError(
            source, [Fault("(file)", "is not UTF-8", "TOML in UTF-8", "Save it as UTF-8.")]
        ) from None


def _priced_now(file: File, now_s: int) -> list[Fault]:
    first: dict[str, float] = {}
    for price in file.prices:
        effective_s = price.effective.timestamp()
        first[price.model] = min(first.get(price.model, effective_s), effective_s)
    return [
        Fault(
            f"models[{index}].name",
            f"{model.name} has no price yet, only a later one",
            "a price whose `effective` has passed",
            "Add the price that holds today.",
        )
        for index, model in enumerate(file.models)
        if first.get(model.name, 0.0) > now_s
    ]


def _moved(path: Path, old: Path, new: Path) -> Path | None:
    try:
        return new / path.relative_to(old)
    except ValueError:
        return None


def _models_dir(env: Mapping[str, str], state_dir: Path) -> Path:
    given = env.get(ENV_MODELS_DIR)
    return Path(given) if given else state_dir / "models"
