"""Two kinds of model: what a harness sends is strict, what the Runtime sends is read leniently.

v5's schemas are strict and frozen (section 11): an extra member is refused, and so is ``null`` for an absent one. So:

* ``Sent``: built by a harness, checked by the Runtime. An unknown member or a stray null is a fault.
* ``Received``: built by the Runtime, read by a harness. Unknown members are dropped and a null counts as absent, so that
  a newer Runtime does not break an older host.

``wire()`` gives what crosses: the members that were set, by their wire names, never a null that stands for absence.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Self, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from pod_host.errors import ContractViolation

Json: TypeAlias = Any  # a peer's JSON: really any
JsonObject: TypeAlias = dict[str, Json]

Id = Annotated[str, Field(min_length=1, max_length=512)]
Text1 = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=0, strict=True)]
Sha256Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Moment = Annotated[datetime, AfterValidator(lambda moment: moment if moment.tzinfo else moment.replace(tzinfo=UTC))]
Token = Annotated[str, Field(pattern=r"^[\x21-\x7e]+$")]  # fit for a header; its fields stay out of a repr

HARNESS_API_VERSION = 5
HALF_A_PAIR = "half of a surrogate pair stands where one of a few words is needed"
"""What is wrong when pydantic raises UnicodeEncodeError: a ``Literal`` does, of a text that is no Unicode."""
TRANSPORT_VERSION = "1"
HARNESS_ID_PATTERN = re.compile(r"^[a-z][a-z0-9-]{1,62}\Z")


def is_harness_id(value: object) -> bool:
    """Whether ``value`` is a text that matches HARNESS_ID_PATTERN (section 0)."""
    return isinstance(value, str) and HARNESS_ID_PATTERN.match(value) is not None


def _camel(name: str) -> str:
    """``host_token``: hostToken. pydantic's own does the same by three regular expressions, for 400 members at each start."""
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


class Wire(BaseModel):
    """What both kinds share: camelCase on the wire, snake_case here."""

    model_config = ConfigDict(alias_generator=_camel, populate_by_name=True, frozen=True, defer_build=True)

    def wire(self) -> JsonObject:
        """The members that were set, by wire name. Shape: a JSON object, ready for an encoder. JSON inside is not copied:
        it may be large, or nested deeper than pydantic's own dump goes."""
        fields = type(self).model_fields
        return {
            fields[name].alias or name: _plain(getattr(self, name)) for name in fields if name in self.model_fields_set
        }

    @classmethod
    def read(cls, value: Json, what: str | None = None) -> Self:
        """Parse one peer's JSON. Raises ContractViolation, whose text names the member at fault."""
        try:
            return cls.model_validate(value)
        except ValidationError as fault:
            raise ContractViolation(f"Invalid {what or cls.__name__}: {first_fault(fault)}") from None
        except UnicodeEncodeError:
            raise ContractViolation(f"Invalid {what or cls.__name__}: {HALF_A_PAIR}") from None


class Sent(Wire):
    """Strict: a harness builds it, the Runtime checks it. Members of ``any_json`` may be null, no other may."""

    model_config = ConfigDict(extra="forbid")
    any_json: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _no_null_for_absent(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for name, value in data.items():
                if value is None and name not in cls.any_json:
                    raise ValueError(f"{name} is null; leave an absent member out")
        return data


class Received(Wire):
    """Lenient: the Runtime builds it, a harness reads it. Unknown members go, a null counts as absent."""

    model_config = ConfigDict(extra="ignore")
    any_json: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {name: value for name, value in data.items() if value is not None or name in cls.any_json}
        return data


class Empty(Sent):
    """``{}``: the params or the answer of a request that has none."""


def first_fault(fault: ValidationError) -> str:
    """The first fault in one line: ``member.path: what is wrong``."""
    error = fault.errors(include_url=False, include_context=False)[0]
    if error["type"] == "extra_forbidden":
        return f'Unrecognized key: "{error["loc"][-1]}"' + _inside(error["loc"][:-1])
    path = ".".join(str(part) for part in error["loc"])
    return f"{path}: {error['msg']}" if path else str(error["msg"])


def _plain(value: Any) -> Json:
    if isinstance(value, Wire):
        return value.wire()
    if isinstance(value, list) and value and isinstance(value[0], Wire):
        return [_plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value


def _inside(path: tuple[int | str, ...]) -> str:
    return f" in {'.'.join(str(part) for part in path)}" if path else ""
