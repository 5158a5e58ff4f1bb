"""What happens to KV blocks, in any order: the rules of a hypothesis state machine.

One set of rules, two subjects: the pure ledger (tests/property/engine) and the subclass of vLLM's pool that it drives
(tests/integration/engine/scheduler). What must never come of it is in `pool_world.py`. Both are loaded by path.
"""

from __future__ import annotations

from blockwarden_tests_pool_world import BLOCKS, POOL, SLOTS, TENANTS, PoolWorld, Request
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from blockwarden_core.policy import EnginePolicy, TenantShare
from blockwarden_engine.domains import Domain
from blockwarden_engine.errors import MismatchedAck, NotOwned, PolicyTooLarge, QuotaExceeded
from blockwarden_engine.ledger import CACHED, CLEAN, IN_USE
from blockwarden_engine.quotas import plan_quotas

SALTS = ("s", "t")
SELDOM = st.integers(0, 7).map(lambda drawn: drawn == 7)
"""For events that undo much: without rest between them a cache never fills."""
OFTEN = st.integers(0, 3).map(bool)
AMOUNTS = st.one_of(st.integers(0, 6), st.sampled_from(("0%", "10%", "25%", "40%")))
SHARES = st.fixed_dictionaries({
    "guaranteed": AMOUNTS, "limit": st.one_of(st.none(), st.integers(0, 12), st.sampled_from(("50%", "100%"))),
    "max_sequences": st.one_of(st.none(), st.integers(1, 3)),
})  # fmt: skip


class PoolMachine(PoolWorld):
    """Policies that change, shrink, borrow and let tenants go with a grace period; requests that start under caps, grow, hit, are
    preempted, resume and end, some of them while a step still uses their blocks; scrubs, acknowledgements, and failures."""

    # ---- the policy ------------------------------------------------------------------------------------------------------

    @initialize(shares=st.lists(st.integers(0, 4), min_size=3, max_size=3))
    def start(self, shares: list[int]) -> None:
        self._put([self._share(name, guaranteed=part) for name, part in zip(TENANTS, shares, strict=True)], grace=10)

    @rule(data=st.data(), now=SELDOM)
    def change_policy(self, data: st.DataObject, now: bool) -> None:
        """Registers, de-registers, grows, shrinks, lets borrow, caps; or would promise too much, and changes nothing."""
        if now:
            tenants = data.draw(st.sets(st.sampled_from(TENANTS), min_size=1))
            shares = [self._share(name, **data.draw(SHARES)) for name in sorted(tenants)]
            self._put(shares, grace=data.draw(st.sampled_from((0, 10, 30))))

    @precondition(lambda self: bool(self.requests and self.policy))
    @rule(data=st.data(), heir=st.booleans(), end=st.booleans(), now=SELDOM)
    def deregister(self, data: st.DataObject, heir: bool, end: bool, now: bool) -> None:
        """A tenant leaves in the middle of a request, which may end as if nothing had happened; another may get its guarantee."""
        if not now:
            return
        request = data.draw(st.sampled_from(self.requests))
        gone = request.domain.tenant.name
        shares = [share for share in self.policy.tenants if share.name != gone]
        if heir and shares and gone in self.quotas:
            own = self.quotas[shares[0].name].guaranteed + self.quotas[gone].guaranteed
            shares[0] = self._share(shares[0].name, guaranteed=own)
        self._put(shares, grace=int(self.grace))
        if end and request in self.requests:
            self._end(request)

    @rule(name=st.sampled_from(TENANTS), retire=st.booleans(), now=SELDOM)
    def raise_generation(self, name: str, retire: bool, now: bool) -> None:
        """Draining (the generation rises) and retiring (the floor follows)."""
        if not now or self.policy is None:
            return
        shares = list(self.policy.tenants)
        for at, share in enumerate(shares):
            if share.name == name:
                generation = share.generation + (not retire)
                update = {"generation": generation, "floor": generation if retire else share.floor}
                shares[at] = share.model_copy(update=update)
        self._put(shares, grace=int(self.grace))

    @rule(seconds=st.integers(1, 12))
    def pass_time(self, seconds: int) -> None:
        """Some grace periods are over."""
        self.now += seconds
        self.ledger.latency.look(self.now)
        due = min((left + self.grace for left, _ in self.left.values()), default=float("inf"))
        assert self.departures.due == due, "the end of a grace period would be missed"
        if due <= self.now and self.policy is not None:
            self._put(list(self.policy.tenants), grace=int(self.grace))

    def _share(self, name: str, **fields: object) -> TenantShare:
        account = self.ledger.tenants.get(name)
        generation, floor = (account.generation, account.floor) if account else (1, 1)
        if fields.get("limit") is None:
            fields["limit"] = fields["guaranteed"]
        return TenantShare(name=name, generation=generation, floor=floor, **fields)

    def _put(self, shares: list[TenantShare], *, grace: int) -> None:
        """What the scheduler does with a policy that came into force."""
        self.version += 1
        policy = EnginePolicy(
            policy_uid="u", version=self.version, tenants=tuple(shares), deregistration_grace_seconds=grace
        )  # fmt: skip
        expected = _plan(shares)
        try:
            quotas = plan_quotas(policy, POOL)
        except PolicyTooLarge:
            assert expected is None, "a policy was refused that fits"
            return
        assert expected is not None, "a policy was taken that promises more than there is"
        assert {name: (quota.guaranteed, quota.limit) for name, quota in quotas.items()} == expected
        self._take(policy, quotas)

    def _take(self, policy: EnginePolicy, quotas: dict) -> None:
        self.left |= {name: (self.now, quota) for name, quota in self.quotas.items() if name not in quotas}
        self.grace = policy.deregistration_grace_seconds
        self.left = {
            name: departure for name, departure in self.left.items()
            if name not in quotas and self.now < departure[0] + self.grace
        }  # fmt: skip
        self.policy, self.quotas = policy, quotas
        draining = self.departures.plan(quotas, pool=POOL, grace=self.grace, now=self.now)
        self.subject.apply(quotas, draining)
        self.fairness.apply(policy, quotas, draining)
        for request in list(self.requests):
            tenant, generation = request.domain.tenant, request.domain.generation.number
            known = self.quotas.get(tenant.name) or (self.left[tenant.name][1] if tenant.name in self.left else None)
            over = known is None or generation < known.floor
            assert tenant.must_end(generation) == over, "a request of nobody goes on, or one with a tenant does not"
            if over:
                self._end(request)
        self.deficit = self._deficit()  # a policy may promise what is still in use: it comes back as requests end

    # ---- requests --------------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(TENANTS), salt=st.sampled_from(SALTS), old=SELDOM, count=st.integers(-1, 6), publish=OFTEN)
    def start_request(self, name: str, salt: str, old: bool, count: int, publish: bool) -> None:
        quota = self.quotas.get(name)
        if quota is None or not self._may_start(name):
            return
        request = Request(self._enter(name, quota.floor if old else quota.generation, salt), self.fairness.flow(name))
        self._allocate(request, count)
        self.requests.append(request)
        if publish:
            self._publish(request)

    def _may_start(self, name: str) -> bool:
        """The scheduler's question for one more running request, and the rule of sequence caps and kept slots beside it."""
        running = [request.domain.tenant.name for request in self.requests if request.running]
        self.step += 1
        self.fairness.begin(self.step)
        self.fairness.count_running(request.flow for request in self.requests if request.running)
        free, flow = SLOTS - len(running), self.fairness.flow(name)
        served = self.quotas.keys() | self.left.keys()
        cap = next((share.max_sequences for share in self.policy.tenants if share.name == name), None) if self.policy else None
        kept = min(len(served) - len(set(running)), SLOTS // 4)
        if name in self.quotas:
            wanted = running.count(name) < (cap or SLOTS + 1) and (name not in running or free > kept)
            assert self.fairness.may_start(flow, free) == wanted, "a cap on sequences, or a slot kept for others, is not kept"
        return free > 0 and self.fairness.may_start(flow, free)

    @precondition(lambda self: any(request.running for request in self.requests))
    @rule(data=st.data(), count=st.integers(1, 3))
    def grow(self, data: st.DataObject, count: int) -> None:
        self._allocate(data.draw(st.sampled_from([request for request in self.requests if request.running])), count)

    @precondition(lambda self: any(request.running for request in self.requests))
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        self._publish(data.draw(st.sampled_from([request for request in self.requests if request.running])))

    def _publish(self, request: Request) -> None:
        for block in request.blocks:
            if block not in self.published and self.subject.references(block) == 1:
                self.key += 1
                self.subject.publish(block, self.key)
                self.published[block] = request.domain
                self.keys[self.key] = block

    @precondition(lambda self: bool(self.keys) and any(request.running for request in self.requests))
    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        """A request of any domain meets a published block: its own it may use, another's never."""
        request = data.draw(st.sampled_from([request for request in self.requests if request.running]))
        key = data.draw(st.sampled_from(sorted(self.keys)))
        block = self.subject.lookup(request.domain, key)
        if block is None:
            return
        before = self._others(request.domain.tenant)
        try:
            self.subject.use(request.domain, block)
        except NotOwned:
            assert self.published.get(block) is not request.domain, "a domain was refused its own block"
            return
        request.blocks.append(block)
        assert self.content[block] == self._name(request.domain), "a request hit what another trust domain wrote"
        self._unharmed(before)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), deferred=SELDOM)
    def end(self, data: st.DataObject, deferred: bool) -> None:
        """A request ends or is aborted; with a step under way its blocks come later."""
        request = data.draw(st.sampled_from(self.requests))
        before = self._others(request.domain.tenant)
        self._end(request, deferred=deferred)
        self._unharmed(before)

    def _end(self, request: Request, *, deferred: bool = False) -> None:
        self.requests.remove(request)
        if deferred and request.blocks:
            self.deferred.append((request.domain, request.blocks[::-1]))
        else:
            self.subject.free(request.domain, request.blocks[::-1])
        self.ledger.leave(request.domain)

    @precondition(lambda self: self.deferred)
    @rule()
    def land(self) -> None:
        """The step is done that used the blocks of a request that is gone."""
        domain, blocks = self.deferred.pop(0)
        before = self._others(domain.tenant)
        self.subject.free(domain, blocks)
        self._unharmed(before)

    @precondition(lambda self: any(request.running for request in self.requests))
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        """A running request gives all its blocks up, and waits."""
        request = data.draw(st.sampled_from([request for request in self.requests if request.running]))
        before = self._others(request.domain.tenant)
        self.subject.free(request.domain, request.blocks[::-1])
        request.blocks, request.running = [], False
        self._unharmed(before)

    @precondition(lambda self: not all(request.running for request in self.requests))
    @rule(data=st.data(), count=st.integers(0, 6))
    def resume(self, data: st.DataObject, count: int) -> None:
        request = data.draw(st.sampled_from([request for request in self.requests if not request.running]))
        if self._may_start(request.domain.tenant.name):
            request.running = True
            self._allocate(request, count)

    # ---- cache and scrub -------------------------------------------------------------------------------------------------

    @rule(block=st.integers(1, BLOCKS - 1))
    def evict(self, block: int) -> None:
        if self.ledger.state(block) == CACHED:
            self.subject.evict(block)

    @rule(now=SELDOM)
    def reset_prefix_cache(self, now: bool) -> None:
        """Done while nobody uses a block but requests that are gone; then nothing is left to be hit."""
        if not now:
            return
        deferred = sum(len(blocks) for _, blocks in self.deferred)
        used = {block for block in range(1, BLOCKS) if self.ledger.state(block) == IN_USE}
        done = self.subject.reset(deferred)
        assert done == (len(used) <= deferred)
        if done:
            assert not self.ledger.cached, "what was reset can still be hit"
            self.published, self.keys = {}, {}

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), count=st.integers(1, 8))
    def make_room(self, data: st.DataObject, count: int) -> None:
        domain = data.draw(st.sampled_from(self.requests)).domain
        before = self._others(domain.tenant)
        self.subject.make_room(domain, count)
        self._unharmed(before)

    @rule()
    def work(self) -> None:
        """A whole round of the worker."""
        self.scrub()
        while self.ordered:
            self.zero()
        while self.zeroed:
            self.acknowledge()

    @rule()
    def scrub(self) -> None:
        epoch, blocks = self.ledger.order_scrub()
        if epoch:
            self.ordered.append((epoch, list(blocks)))

    @precondition(lambda self: self.ordered)
    @rule()
    def zero(self) -> None:
        """The worker does what it was told, some time later."""
        epoch, blocks = self.ordered.popleft()
        for block in blocks:
            self.content[block] = None
        self.zeroed.append((epoch, len(blocks)))

    @precondition(lambda self: self.zeroed)
    @rule()
    def acknowledge(self) -> None:
        epoch, count = self.zeroed.popleft()
        before = [block for block in range(1, BLOCKS) if self.ledger.state(block) != CLEAN]
        self.ledger.acknowledge(epoch, count)
        self.cleaned += count
        for block in before:
            if self.ledger.state(block) == CLEAN:
                self.residue.pop(block, None)

    @rule(epoch=st.integers(0, 9), count=st.integers(0, BLOCKS))
    def acknowledge_falsely(self, epoch: int, count: int) -> None:
        """An acknowledgement that nobody can have sent changes nothing."""
        pending = [*self.zeroed, *((epoch, len(blocks)) for epoch, blocks in self.ordered)]
        if pending and pending[0] == (epoch, count):
            return
        try:
            self.ledger.acknowledge(epoch, count)
        except MismatchedAck:
            return
        raise AssertionError("a false acknowledgement was believed")

    @precondition(lambda self: self.ordered and not self.zeroed)
    @rule(now=SELDOM)
    def fail_to_scrub(self, now: bool) -> None:
        """The worker zeroes all but one block and says so: nothing is clean of it, the engine ends, and another one starts."""
        if not now:
            return
        epoch, blocks = self.ordered[0]
        for block in blocks[1:]:
            self.content[block] = None
        self.acknowledge_falsely(epoch, len(blocks) - 1)
        self.nobody_reads_what_another_wrote()
        shares, grace = list(self.policy.tenants) if self.policy else [], int(self.grace)
        self._boot()
        self._put(shares, grace=grace)

    # ---- what the rules share --------------------------------------------------------------------------------------------

    def _allocate(self, request: Request, count: int) -> None:
        domain = request.domain
        allowed, before = self._allowed(domain), self._others(domain.tenant)
        assert self.ledger.allocatable(domain) == allowed, "a tenant may take more or less than its quota says"
        try:
            blocks, recycled = self.subject.allocate(domain, count)
        except QuotaExceeded:
            assert count < 0 or count > allowed, "a tenant was refused what it is allowed"
            return
        assert 0 <= count <= allowed, "a quota was exceeded"
        assert len(blocks) == len(set(blocks)) == count
        for block in blocks:
            expected = self._name(domain) if block in recycled else None
            assert self.content[block] in (None, expected), "a block changed its trust domain without being zeroed"
            self.content[block] = self._name(domain)  # a recycled one is zeroed first, by the worker, in the same step
            self.residue[block] = (domain.tenant.name, domain.generation.number)
            if self.published.pop(block, None) is not None:
                self.keys = {key: published for key, published in self.keys.items() if published != block}
            request.blocks.append(block)
        self._unharmed(before)

    def _enter(self, name: str, generation: int, salt: str) -> Domain:
        domain = self.ledger.enter(name, generation, salt)
        key = (name, generation, salt)
        assert self.owners.setdefault(domain.owner, key) == key, "an owner number was given twice"
        return domain


def _plan(shares: list[TenantShare]) -> dict[str, tuple[int, int]] | None:
    """(guaranteed, limit) of each tenant by plain arithmetic; None where they cannot all be kept."""
    rest = POOL - sum(share.guaranteed for share in shares if isinstance(share.guaranteed, int))

    def blocks(amount: int | str) -> int:
        return amount if isinstance(amount, int) else rest * int(amount[:-1]) // 100

    plan = {share.name: (blocks(share.guaranteed), min(POOL, blocks(share.limit))) for share in shares}
    over = rest < 0 or sum(guaranteed for guaranteed, _ in plan.values()) > POOL
    return None if over or any(limit < guaranteed for guaranteed, limit in plan.values()) else plan
