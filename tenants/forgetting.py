"""People's names taken out of what is kept: of one person who asks, and of everybody after some time.

Sums stay.  What a budget still counts keeps its name until it is not counted any more, so that no window is reset and
none counts twice: reservations of a running window of a budget that stands for the person, and those that are still
held, wait.  Rows of windows that began earlier are dropped; they can be counted anew from what bears the name.
What a late settlement or a refund does to a renamed reservation follows its new name, and no window that runs.

What names somebody so that they are let in or kept out stays while it does: keys that work, documents that they own or
may read, revocations, budgets (`standing`).
Plain functions over a `Connection`, a bounded batch each.  Refuses to know: when (`retention`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Connection, Table, and_, delete, func, or_, select, update

from policies.facts import Budget
from policies.periods import DAY_MS
from tenants import responses_rows, schema
from tenants.changes import ChangeKind
from tenants.pseudonyms import (
    OTHER,
    PERSON,
    PSEUDONYM,
    Names,
    Person,
    has_form,
    rename_recorded,
    rename_reserved,
)
from tenants.scopes import BudgetAccount
from tenants.windows import span_at

BATCH: Final = 500
_R, _Q, _W, _A = schema.reservation, schema.request, schema.budget_window, schema.adjustment
_O, _C, _K, _B = schema.outbox, schema.change, schema.api_key, schema.budget_override
_D, _V = schema.registration, schema.registration_reader
_OF_BUDGETS = (ChangeKind.BUDGET_SET.value, ChangeKind.BUDGET_TOPPED_UP.value)
_BY_WHOM = (_A, _C, schema.suspension, schema.revocation)


@dataclass(frozen=True, slots=True)
class Batch:
    """`renamed` now, `left` under the plain name, of which `counted` by a budget that stands."""

    renamed: int
    left: int
    counted: int


@dataclass(frozen=True, slots=True)
class Standing:
    """What still names a person, since it is in force."""

    keys: int
    documents: int
    readers: int
    budgets: int


def counted_since_ms(conn: Connection, who: Person, now_ms: int) -> int | None:
    """From when on a budget that stands counts what this person spends; None: none does."""
    since = [
        span_at(BudgetAccount("user", who.account, budget), now_ms // 1000).since_s * 1000
        for budget in _budgets(conn, who)
    ]
    return min(since, default=None)


def forget_person(
    conn: Connection, names: Names, who: Person, *, before_ms: int, now_ms: int, most: int = BATCH
) -> Batch:
    """What was asked until `before_ms`, a batch of it."""
    since_ms = counted_since_ms(conn, who, now_ms)
    until_ms = before_ms if since_ms is None else min(before_ms, since_ms)
    mine = and_(_R.c.user_account == who.account, _R.c.at_ms < before_ms)
    ready = and_(mine, _R.c.at_ms < until_ms, _R.c.state != "HELD")
    rows = conn.execute(select(_R).where(ready).limit(most)).mappings().all()
    rename_reserved(conn, names, rows)
    if rows:
        _account(conn, names, who, until_ms)
    left = int(conn.execute(select(func.count()).where(mine)).scalar_one())
    counted = int(
        conn.execute(select(func.count()).where(mine, _R.c.at_ms >= until_ms)).scalar_one()
    )
    return Batch(len(rows), left, counted)


def forget_recorded(
    conn: Connection, names: Names, who: Person, *, from_ms: int, to_ms: int, most: int = BATCH
) -> int:
    """What was refused before anything was held, of one span of time."""
    mine = and_(_Q.c.issuer == who.issuer, _Q.c.user == who.user)
    rows = _refused(conn, who.tenant, mine, from_ms, to_ms, most)
    rename_recorded(conn, names, rows)
    return len(rows)


def is_known(conn: Connection, names: Names, who: Person, *, keys: bool) -> bool:
    """Whether something that was reserved, a key or a document is or was this person's in this tenant."""
    name = names.person(who.issuer, who.user)
    renamed = Person(who.tenant, PSEUDONYM, name)
    owner = or_(
        and_(_D.c.issuer == who.issuer, _D.c.owner == who.user),
        and_(_D.c.issuer == PSEUDONYM, _D.c.owner == name),
    )
    theirs = [
        (_R, _R.c.user_account.in_((who.account, renamed.account))),
        (_D, and_(_D.c.tenant == who.tenant, owner)),
    ]
    if keys:
        theirs.append((_K, and_(_K.c.tenant == who.tenant, _K.c.user.in_((who.user, name)))))
    return any(_there(conn, *each) for each in theirs)


def has_asked(conn: Connection, names: Names, who: Person, *, from_ms: int, to_ms: int) -> bool:
    """The same of what was refused, which bears its pseudonym already, of one span of time."""
    within = and_(_Q.c.received_at_ms >= from_ms, _Q.c.received_at_ms < to_ms)
    name = names.person(who.issuer, who.user)
    theirs = and_(_Q.c.tenant == who.tenant, _Q.c.issuer == PSEUDONYM, _Q.c.user == name)
    return _there(conn, _Q, and_(within, theirs))


def forget_words(
    conn: Connection,
    names: Names,
    who: Person,
    *,
    keys: bool,
    known: bool,
    before_ms: int,
    now_ms: int,
) -> None:
    """Whatever else names the person and is not in force: changes that they made or that were made to them, keys and
    documents that are no more; and what they had stored.  `keys`: they are who keys act as.  `known`: they are somebody of this tenant; else
    what they did to it is an operator's act, and who did it is for no tenant to erase."""
    name = names.person(who.issuer, who.user)
    since_ms = counted_since_ms(conn, who, now_ms)
    until_ms = before_ms if since_ms is None else min(before_ms, since_ms)
    _account(conn, names, who, until_ms)
    told = and_(_O.c.scope == "user", _O.c.account == who.account, _O.c.at_ms < until_ms)
    conn.execute(delete(_O).where(told, _O.c.done_at_ms.is_not(None)))
    for table in _BY_WHOM if known else ():
        theirs = and_(table.c.tenant == who.tenant, table.c.actor == who.actor)
        conn.execute(update(table).where(theirs).values(actor=f"{PSEUDONYM}:{name}"))
    revoked = and_(_C.c.kind == ChangeKind.SUBJECT_REVOKED.value, _C.c.subject == who.user)
    spelt = _C.c.subject.in_((f"user:{who.user}", f"user:{who.account}"))
    budgeted = and_(_C.c.kind.in_(_OF_BUDGETS), spelt)
    about = and_(_C.c.tenant == who.tenant, or_(revoked, budgeted))
    conn.execute(update(_C).where(about).values(subject=f"user:{name}"))
    if keys:
        ended = or_(_K.c.revoked_at_s.is_not(None), _K.c.expires_at_s <= now_ms // 1000)
        theirs = and_(_K.c.tenant == who.tenant, _K.c.user == who.user, ended)
        conn.execute(update(_K).where(theirs).values(user=name, name=""))
    responses_rows.forget_person(conn, who.tenant, who.issuer, who.user, before_ms=before_ms)
    gone = and_(_D.c.deleted_at_s.is_not(None), _D.c.tenant == who.tenant)
    theirs = and_(gone, _D.c.issuer == who.issuer, _D.c.owner == who.user)
    conn.execute(update(_D).where(theirs).values(issuer=PSEUDONYM, owner=name))


def drop_budgets(conn: Connection, who: Person) -> int:
    """Those set for exactly this person: one for the name at every issuer is other people's limit, too."""
    alone = and_(_theirs(who), _B.c.issuer == who.issuer)
    return conn.execute(delete(_B).where(alone)).rowcount


def standing(conn: Connection, who: Person, *, keys: bool, now_ms: int) -> Standing:
    now_s = now_ms // 1000
    works = and_(
        _K.c.revoked_at_s.is_(None), or_(_K.c.expires_at_s.is_(None), _K.c.expires_at_s > now_s)
    )
    held = and_(_K.c.tenant == who.tenant, _K.c.user == who.user, works)
    owned = and_(
        *(_D.c.tenant == who.tenant, _D.c.issuer == who.issuer, _D.c.owner == who.user),
        _D.c.deleted_at_s.is_(None),
    )
    named = and_(_V.c.kind == "user", _V.c.issuer == who.issuer, _V.c.name == who.user)
    within = select(_D.c.id).where(_D.c.tenant == who.tenant)
    return Standing(
        keys=_count(conn, _K, held) if keys else 0,
        documents=_count(conn, _D, owned),
        readers=_count(conn, _V, and_(named, _V.c.id.in_(within))),
        budgets=_count(conn, _B, _theirs(who)),
    )


# Everybody, after some time.


def tenants_of(conn: Connection) -> list[str]:
    """All of whom anything is kept: from one index entry to the next, however many rows there are."""
    found = set[str]()
    for table in (_R, _Q):
        last: str | None = ""
        while True:
            after = select(func.min(table.c.tenant)).where(table.c.tenant > last)
            last = conn.execute(after).scalar_one()
            if last is None:
                break
            found.add(last)
    return sorted(found)


def oldest_ms(conn: Connection, tenant: str) -> int | None:
    firsts = [
        conn.execute(select(func.min(at)).where(table.c.tenant == tenant)).scalar_one()
        for table, at in ((_R, _R.c.at_ms), (_Q, _Q.c.received_at_ms))
    ]
    return min((each for each in firsts if each is not None), default=None)


def forget_all(
    conn: Connection, names: Names, *, from_ms: int, to_ms: int, now_ms: int, most: int = BATCH
) -> int:
    """Everybody's names in one span of time.  A person whose budget reaches back so far keeps theirs."""
    kept = _who_is_counted(conn, names.tenant, to_ms, now_ms)
    plain = and_(
        *(_R.c.tenant == names.tenant, _R.c.at_ms >= from_ms, _R.c.at_ms < to_ms),
        *(_R.c.issuer != PSEUDONYM, _R.c.state != "HELD"),
        *(
            or_(_R.c.user != user, _R.c.issuer != issuer) if issuer else _R.c.user != user
            for issuer, user in kept
        ),
    )
    rows = conn.execute(select(_R).where(plain).limit(most)).mappings().all()
    rename_reserved(conn, names, rows)
    for issuer, user in {(row["issuer"], row["user"]) for row in rows}:
        _account(conn, names, Person(names.tenant, issuer, user), to_ms)
    if len(rows) == most:
        return most
    refused = _refused(conn, names.tenant, _Q.c.issuer != PSEUDONYM, from_ms, to_ms, most)
    rename_recorded(conn, names, refused)
    return len(rows) + len(refused)


def forget_gone(conn: Connection, names: Names, *, key_issuer: str, before_ms: int) -> None:
    """Keys and documents that ended before, and whose tokens were revoked then.  `key_issuer`: of whom keys act as."""
    before_s, tenant = before_ms // 1000, names.tenant
    ended = or_(_K.c.revoked_at_s < before_s, _K.c.expires_at_s < before_s)
    keys = and_(_K.c.tenant == tenant, ~has_form(_K.c.user, PERSON), ended)
    for row in conn.execute(select(_K.c.id, _K.c.user).where(keys).limit(BATCH)).all():
        new = {"user": names.person(key_issuer, row.user), "name": ""}
        conn.execute(update(_K).where(_K.c.id == row.id).values(new))
    gone = and_(_D.c.tenant == tenant, _D.c.deleted_at_s < before_s, _D.c.issuer != PSEUDONYM)
    owned = select(_D.c.id, _D.c.issuer, _D.c.owner).where(gone).limit(BATCH)
    for id_, issuer, owner in conn.execute(owned).all():
        new = {"issuer": PSEUDONYM, "owner": names.person(issuer, owner)}
        conn.execute(update(_D).where(_D.c.id == id_).values(new))
    revoked = and_(
        *(_C.c.tenant == tenant, _C.c.at_s < before_s),
        *(
            _C.c.kind == ChangeKind.SUBJECT_REVOKED.value,
            ~has_form(_C.c.subject, OTHER),
            ~has_form(_C.c.subject, f"user:{PERSON}"),
        ),
    )
    for row in conn.execute(select(_C.c.id, _C.c.subject).where(revoked).limit(BATCH)).all():
        subject = names.other("person", row.subject)
        conn.execute(update(_C).where(_C.c.id == row.id).values(subject=subject))


# How.


def _theirs(who: Person) -> ColumnElement[bool]:
    return and_(
        *(_B.c.tenant == who.tenant, _B.c.scope == "user", _B.c.name == who.user),
        _B.c.issuer.in_((who.issuer, "")),
    )


def _budgets(conn: Connection, who: Person) -> list[Budget]:
    found = conn.execute(select(_B.c.budget).where(_theirs(who))).scalars()
    return [msgspec.json.decode(each, type=Budget) for each in found]


def _who_is_counted(
    conn: Connection, tenant: str, to_ms: int, now_ms: int
) -> list[tuple[str, str]]:
    """Issuer ("": each) and user of everybody whose budget counts something before `to_ms`."""
    rows = conn.execute(
        select(_B.c.issuer, _B.c.name, _B.c.budget).where(
            _B.c.tenant == tenant, _B.c.scope == "user"
        )
    )
    return [
        (row.issuer, row.name)
        for row in rows
        if span_at(
            BudgetAccount("user", "", msgspec.json.decode(row.budget, type=Budget)), now_ms // 1000
        ).since_s
        * 1000
        < to_ms
    ]


def _account(conn: Connection, names: Names, who: Person, until_ms: int) -> None:
    """What hangs on the name of an account: rows of windows that began before, and top-ups."""
    new = Person(who.tenant, PSEUDONYM, names.person(who.issuer, who.user)).account
    theirs = and_(_A.c.scope == "user", _A.c.account == who.account, _A.c.at_ms < until_ms)
    conn.execute(update(_A).where(theirs).values(account=new))
    row = and_(_W.c.scope == "user", _W.c.account == who.account, _W.c.start_s * 1000 < until_ms)
    conn.execute(delete(_W).where(row))


def _refused(
    conn: Connection, tenant: str, who: ColumnElement[bool], from_ms: int, to_ms: int, most: int
) -> Sequence[Mapping[Any, Any]]:
    """Records without a reservation; the others are renamed with theirs."""
    held = select(_R.c.request_id).where(_R.c.request_id == _Q.c.request_id).exists()
    within = and_(
        _Q.c.tenant == tenant, _Q.c.received_at_ms >= from_ms, _Q.c.received_at_ms < to_ms
    )
    found = conn.execute(select(_Q).where(within, who, ~held).limit(most))
    return found.mappings().all()


def _there(conn: Connection, table: Table, where: ColumnElement[bool]) -> bool:
    return conn.execute(select(1).select_from(table).where(where).limit(1)).first() is not None


def _count(conn: Connection, table: Table, where: ColumnElement[bool]) -> int:
    return int(conn.execute(select(func.count()).select_from(table).where(where)).scalar_one())


def spans(first_ms: int, to_ms: int) -> list[tuple[int, int]]:
    """Days."""
    starts = range(first_ms // DAY_MS * DAY_MS, to_ms, DAY_MS)
    return [(start, min(start + DAY_MS, to_ms)) for start in starts]
