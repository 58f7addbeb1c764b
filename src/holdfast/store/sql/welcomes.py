"""Owns gathering what an agent is told when its session begins. Hook processes read this, so it stays light."""

from __future__ import annotations

from holdfast.domain.telling.welcome import MOST_ROWS, Welcome
from holdfast.store.sql import delegations

TYPE_CHECKING = False

if TYPE_CHECKING:
    from holdfast.store.sql.scope import Scope

#: live exactly while the holder's lease carries its fence, as in ``provider_sessions.STATE``; a session that was
#: imported, and in which no turn of ours ever ran, is its program's own as before
BELONGS = """
SELECT CASE WHEN o.imported_at IS NOT NULL AND p.holder_session_id IS NULL THEN NULL ELSE p.session_id END, h.id
FROM provider_sessions p LEFT JOIN sessions o ON o.workspace = p.workspace AND o.id = p.session_id
LEFT JOIN sessions h ON h.workspace = p.workspace
    AND h.id = p.holder_session_id AND h.fence = p.holder_fence AND h.lease_expires_at > :now
WHERE p.workspace = :ws AND p.provider = :provider AND p.id = :id"""
# a conversation has no project, but a directory that it works in
OPEN_APPROVALS = """
SELECT a.id, s.agent, a.what FROM approvals a JOIN sessions s ON s.workspace = a.workspace AND s.id = a.session_id
WHERE a.workspace = :ws AND a.status = 'open' AND (a.expires_at IS NULL OR a.expires_at > :now)
    AND (s.project = :project OR EXISTS (SELECT 1 FROM pointers p
        WHERE p.workspace = a.workspace AND p.session_id = a.session_id
            AND (p.work_dir = :project OR SUBSTR(p.work_dir, 1, CAST(:size AS INTEGER)) = :inside)))
ORDER BY a.requested_at DESC, a.id LIMIT :limit"""
#: one more than is told, to know whether there are more
_LIMIT = MOST_ROWS + 1


def gather(s: Scope, provider: str, provider_session_id: str, project: str, besides: str | None) -> Welcome:
    """``besides``: the session that runs the asking agent; it may hold the provider session."""
    inside = project.rstrip("/") + "/"
    session_id, holder = s.one(BELONGS, provider=provider, id=provider_session_id, now=s.now) or (None, None)
    return Welcome(
        session_id=session_id,
        holder=None if holder == besides else holder,
        approvals=tuple(
            s.all(OPEN_APPROVALS, project=project, inside=inside, size=len(inside), now=s.now, limit=_LIMIT)
        ),
        paused=delegations.paused_here(s, project, _LIMIT),
    )
