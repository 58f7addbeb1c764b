-- what was deleted, counted by day, and what leaves no row behind: so that figures over any time stay right
CREATE TABLE daily_totals (
    workspace  TEXT NOT NULL,
    day        BIGINT NOT NULL,   -- whole days of UTC since 1970
    agent      TEXT NOT NULL,
    provider   TEXT NOT NULL,
    what       TEXT NOT NULL,   -- see TotalKind
    detail     TEXT NOT NULL,
    number     BIGINT NOT NULL,
    amount     DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (workspace, day, agent, provider, what, detail)
);
