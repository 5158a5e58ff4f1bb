"""What the operator tells the gateways and the engines of one TenantPolicy.

Both documents are mounted from ConfigMaps and reloaded while running. The engine's is sealed: a MAC under the engine key,
bound to the policy's UID, with a version that only rises, so that neither an edited nor an older nor a foreign file is ever
taken into force.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from .document import Document
from .errors import RetiredToken, StaleDocument, UnknownTenant
from .identity import Scope, TenantName
from .keys import EngineKeys
from .salt import MAX_GENERATION, Token
from .sealed import open_sealed, seal

Percent = Annotated[str, Field(pattern=r"^(100|[1-9]?[0-9])%$")]
Amount = Annotated[int, Field(ge=0)] | Percent
"""A number of KV blocks, or a percentage of the pool."""
Generation = Annotated[int, Field(ge=1, le=MAX_GENERATION)]
MAX_GRACE_SECONDS: Final = 3600
"""The longest time for which a de-registered tenant's requests may run on."""
CANARY_TOKENS: Final = 320
"""Length of the prompt with which gateways attest engines: more than two blocks of any size up to 159 tokens, more than one up to
319."""
MIN_MODEL_LEN: Final = CANARY_TOKENS + 1
"""The shortest context, in tokens, in which an engine can be attested: the canary's prompt and one token of the answer."""
_SEALED_AS: Final = "policy"


def blocks_of(amount: int | str, pool: int) -> int:
    """`amount` in blocks of a pool of `pool` blocks, rounded down."""
    return amount if isinstance(amount, int) else pool * int(amount.removesuffix("%")) // 100


class TenantShare(Document):
    """One tenant's share of an engine.

    `generation` is the salt generation in use: blocks of an older one are freed without staying cached.
    `floor` is the oldest generation that is still admitted.
    """

    name: TenantName
    guaranteed: Amount
    limit: Amount
    generation: Generation
    floor: Generation
    max_sequences: Annotated[int, Field(ge=1)] | None = None
    max_batched_tokens_share: Percent | None = None

    @model_validator(mode="after")
    def _floor_is_not_ahead(self) -> Self:
        if self.floor > self.generation:
            raise ValueError("floor is above generation")
        return self


class EnginePolicy(Document):
    """What an engine enforces. `blocks` in shares with an absolute number come first; percentages are of the pool that remains
    after them.

    Tenants that are absent are de-registered: their requests are refused from now on, and those that run are ended after
    `deregistration_grace_seconds`.
    """

    kind: Literal["EnginePolicy"] = "EnginePolicy"
    policy_uid: str
    version: Annotated[int, Field(ge=1)]
    tenants: tuple[TenantShare, ...]
    deregistration_grace_seconds: Annotated[int, Field(ge=0, le=MAX_GRACE_SECONDS)] = 0

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        if len({share.name for share in self.tenants}) != len(self.tenants):
            raise ValueError("tenants has a name twice")
        return self

    def share(self, tenant: str) -> TenantShare | None:
        return next((share for share in self.tenants if share.name == tenant), None)

    def admit(self, token: Token) -> TenantShare:
        """The share that serves a verified token.

        Raises:
            UnknownTenant: the tenant is not, or no longer, served here.
            RetiredToken: the token's generation is below the floor.
        """
        share = self.share(token.tenant)
        if share is None:
            raise UnknownTenant("this engine does not serve the request's tenant")
        if token.generation < share.floor:
            raise RetiredToken("the request's cache_salt is of a retired generation: derive it again")
        return share


def seal_policy(policy: EnginePolicy, keys: EngineKeys) -> str:
    """The text of `policy/engine.json`."""
    return seal(_SEALED_AS, policy.text(), keys)


def open_policy(text: str | bytes, keys: EngineKeys, *, policy_uid: str, in_force: EnginePolicy | None) -> EnginePolicy:
    """The policy in a sealed document, if it may replace the one in force.

    Raises:
        DocumentError: unreadable. UnsealedDocument: not sealed by one of `keys`.
        StaleDocument: of another TenantPolicy, or older than `in_force`.
    """
    policy = EnginePolicy.read(open_sealed(_SEALED_AS, text, keys))
    if policy.policy_uid != policy_uid:
        raise StaleDocument("EnginePolicy: written for another TenantPolicy")
    if in_force is not None and policy.version < in_force.version:
        raise StaleDocument(f"EnginePolicy: version {policy.version} is older than {in_force.version}, which is in force")
    if in_force is not None and policy.version == in_force.version and policy != in_force:
        raise StaleDocument(f"EnginePolicy: version {policy.version} is in force with other contents")
    return policy


class Limits(Document):
    """Limits of one tenant at one gateway pod; None is no limit."""

    concurrent_requests: Annotated[int, Field(ge=1)] | None = None
    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    tokens_per_minute: Annotated[int, Field(ge=1)] | None = None


class ModelAlias(Document):
    """A model name that a tenant may use, and the served model it stands for."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    served: Annotated[str, Field(min_length=1, max_length=128)]


class GatewayTenant(Document):
    """One tenant as the gateway sees it. Without `models` it may use the served model under its own name."""

    name: TenantName
    scope: Scope
    models: tuple[ModelAlias, ...] = ()
    limits: Limits = Limits()


class EngineAddress(Document):
    """Where the engines are: a headless Service to resolve, and the name that their certificates carry."""

    host: str
    port: Annotated[int, Field(ge=1, le=65535)]
    server_name: str


class GatewayPolicy(Document):
    """What a gateway enforces."""

    kind: Literal["GatewayPolicy"] = "GatewayPolicy"
    policy_uid: str
    version: Annotated[int, Field(ge=1)]
    model: str
    engine: EngineAddress
    tenants: tuple[GatewayTenant, ...]
    expose_cached_tokens: bool = False
    attestation_interval_seconds: Annotated[int, Field(ge=10)] = 300

    def tenant(self, name: str) -> GatewayTenant | None:
        return next((tenant for tenant in self.tenants if tenant.name == name), None)
