-- The monitor asks once a second how far each stream has come.
create index session_events_by_offset on session_events (stream_name, ds_offset);
