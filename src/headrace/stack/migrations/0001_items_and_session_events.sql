-- Source of the direction Postgres to stream: applications write here.
create table items (
    id serial primary key,
    title text not null,
    body text,
    created_at timestamptz default now()
);

-- Sink of the direction stream to Postgres: the sync writes here.
create table session_events (
    id serial primary key,
    stream_name text not null,
    event_key text,
    event_type text,
    operation text,
    payload jsonb not null,
    ds_offset text,
    received_at timestamptz default now()
);
