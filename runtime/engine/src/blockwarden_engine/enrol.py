"""A request's papers: its verified token, its trust domain, and how long it may get. Or why it must not run.

The scheduler cannot refuse by raising, for that would end the engine for everybody. So a request is marked here, takes part in
nothing, and is ended with an error in the next step. The API process refuses earlier and with a proper status; this is the
last line, and trusts nothing that was verified elsewhere.
"""

from __future__ import annotations

from typing import Any

from blockwarden_core.errors import ForgedToken, TokenError
from blockwarden_core.policy import EnginePolicy
from blockwarden_core.salt import verify_token

from .admission import carried_token
from .domains import Domain
from .errors import GenerationLeft, NeverFits, RequestRefused, TenantLeft
from .fairness import Fairness
from .fit import Fit
from .ledger import Ledger
from .policy import PolicyFile


class Enrolment:
    """Gives requests the attributes by which the rest of the scheduler knows them.

    trust_domain: Domain, or None where there is none to belong to.
    flow: Flow of its tenant, or None.
    refused: None, or the reason's code.
    """

    def __init__(self, file: PolicyFile, policy_uid: str, ledger: Ledger, fairness: Fairness, fit: Fit) -> None:
        self._file, self._policy_uid = file, policy_uid
        self._ledger, self._fairness, self._fit = ledger, fairness, fit

    def enrol(self, request: Any, policy: EnginePolicy) -> None:
        """Marks a new request under the policy that the ledger has applied; never raises for one that must not run."""
        request.trust_domain = request.flow = request.refused = None
        try:
            domain = self._domain(request, policy)
            request.trust_domain, request.flow = domain, self._fairness.flow(domain.tenant.name)
            self.bound(request)
        except (TokenError, RequestRefused) as error:
            request.refused = error.code

    def bound(self, request: Any) -> None:
        """Caps the length of a request to what its tenant may ever hold here.

        Raises:
            RequestRefused: it is already too long, or is one that gets longer after it was admitted.
        """
        if request.resumable:
            raise RequestRefused("a request that takes input while it runs cannot be bounded: send it whole")
        room = self._fit.tokens_in(request.trust_domain.tenant.capacity) - request.num_prompt_tokens
        if room < 1 or room <= request.num_output_tokens:
            raise NeverFits("the request needs more blocks than its tenant may hold: shorten it or raise the tenant's limit")
        request.max_tokens = min(request.max_tokens, room)

    def review(self, request: Any) -> None:
        """Bounds a request anew after quotas changed.

        Raises:
            RequestRefused: it must not go on: its tenant left, its generation is retired, or its tenant may never hold it.
        """
        domain: Domain = request.trust_domain
        tenant, generation = domain.tenant, domain.generation.number
        if not (tenant.registered or tenant.draining):
            raise TenantLeft("the request's tenant is not served here any more")
        if tenant.must_end(generation):
            raise GenerationLeft("the request's salt generation is retired")
        self.bound(request)

    def _domain(self, request: Any, policy: EnginePolicy) -> Domain:
        token = verify_token(carried_token(request), engine_keys=self._file.keys.accepted, policy_uid=self._policy_uid)
        if request.cache_salt != token.salt:
            raise ForgedToken("the request's blocks are hashed under another salt than its token's")
        policy.admit(token)
        return self._ledger.enter(token.tenant, token.generation, token.salt)
