"""What cffi makes of ls_api.h. Pointers and structs are `Any`."""

from typing import Any, Final

ffi: Any

class _Lib:
    LS_OK: Final[int]
    LS_E_ARGUMENT: Final[int]
    LS_E_NO_SPACE: Final[int]
    LS_E_CRC: Final[int]
    LS_E_LENGTH: Final[int]
    LS_E_MAGIC: Final[int]
    LS_E_CODEC: Final[int]
    LS_E_RECORD: Final[int]
    LS_E_VARINT: Final[int]
    LS_E_OFFSET: Final[int]
    LS_E_COUNT: Final[int]
    LS_E_NESTED: Final[int]
    LS_E_EMPTY: Final[int]
    LS_E_TOO_LARGE: Final[int]
    LS_HEADERS_MAX: Final[int]
    LS_PRODUCER_BATCHES: Final[int]
    LS_E_HEADER_KEY: Final[int]
    LS_PAGE_BYTES: Final[int]
    LS_PAGE_DURABLE_POS: Final[int]
    LS_PAGE_CHECK_POS: Final[int]
    LS_PAGE_TO_OPEN: Final[int]
    LS_PAGE_OFF: Final[int]
    LS_WATCH_ENTRIES: Final[int]
    LS_WATCH_RENAMES: Final[int]
    LS_WATCH_FILE: Final[int]
    LS_WATCH_CLOSES: Final[int]
    LS_WATCH_NAMES: Final[int]
    LS_WATCH_WRITES: Final[int]
    LS_WATCH_ENDED: Final[int]
    LS_STEP_LOCK: Final[int]
    LS_STEP_UNLOCK: Final[int]
    LS_STEP_FILE: Final[int]
    LS_STEP_BYTES: Final[int]
    LS_STEP_WRITE: Final[int]
    LS_STEP_SYNC: Final[int]
    LS_STEP_STAMP: Final[int]
    LS_STEP_BYTES_MAX: Final[int]
    LS_GROUP_POINT_BYTES: Final[int]
    LS_GROUP_POINT_SIZE_POS: Final[int]
    LS_STOP_END: Final[int]
    LS_STOP_PARTIAL: Final[int]
    LS_STOP_ZEROS: Final[int]
    LS_STOP_FULL: Final[int]
    LS_STOP_COMPRESSED: Final[int]
    LS_STOP_OFFSET: Final[int]
    LS_STOP_ROLL_SIZE: Final[int]
    LS_STOP_ROLL_TIME: Final[int]
    LS_STOP_ROLL_INDEX: Final[int]
    LS_STOP_ROLL_OFFSET: Final[int]
    LS_CHECK_CRC: Final[int]
    LS_CHECK_ORDER: Final[int]
    LS_CHECK_GAPLESS: Final[int]
    LS_CHECK_EPOCH: Final[int]
    LS_E_EPOCH: Final[int]
    LS_E_NO_MAGIC: Final[int]
    LS_OFFSET_UNKNOWN: Final[int]
    LS_CRC_PORTABLE: Final[int]
    LS_CRC_HARDWARE: Final[int]
    LS_CRC_NARROW: Final[int]
    LS_CRC_SSE42: Final[int]
    LS_CRC_DOUBLE: Final[int]
    LS_VIEW_BYTES: Final[int]
    LS_VIEW_INLINE_MAX: Final[int]

    def ls_crc32(self, crc: int, data: Any, size: int, /) -> int: ...
    def ls_crc32c(self, crc: int, data: Any, size: int, /) -> int: ...
    def ls_crc32_path(
        self, path: int, crc: int, data: Any, size: int, ok: Any, /
    ) -> int: ...
    def ls_crc32c_path(
        self, path: int, crc: int, data: Any, size: int, ok: Any, /
    ) -> int: ...
    def ls_crc32_pieces(
        self, buf: Any, pos: Any, size: Any, count: int, out: Any, /
    ) -> None: ...
    def ls_crc_hardware(self) -> int: ...
    def ls_varint_put(self, out: Any, size: int, value: int, /) -> int: ...
    def ls_varint_get32(self, data: Any, size: int, value: Any, /) -> int: ...
    def ls_varint_get64(self, data: Any, size: int, value: Any, /) -> int: ...
    def ls_scan_batches(
        self, buf: Any, size: int, checks: int, out: Any, capacity: int, walk: Any, /
    ) -> int: ...
    def ls_seek_batch(
        self, buf: Any, size: int, checks: int, offset: int, last: Any, walk: Any, /
    ) -> int: ...
    def ls_find_contradicted(
        self, buf: Any, size: int, following: int, walk: Any, /
    ) -> int: ...
    def ls_decode(
        self,
        buf: Any,
        size: int,
        checks: int,
        start_offset: int,
        stop_offset: int,
        columns: Any,
        walk: Any,
        /,
    ) -> int: ...
    def ls_decode_payload(
        self,
        batch: Any,
        payload: Any,
        size: int,
        checks: int,
        start_offset: int,
        stop_offset: int,
        columns: Any,
        base_offset: Any,
        error: Any,
        /,
    ) -> int: ...
    def ls_locate_record(
        self, area: Any, size: int, number: int, pos: Any, bytes: Any, /
    ) -> int: ...
    def ls_locate_time(
        self, area: Any, size: int, count: int, delta: int, offset_delta: Any, /
    ) -> int: ...
    def ls_count_inner(
        self, payload: Any, size: int, count: Any, error: Any, /
    ) -> int: ...
    def ls_decode_headers(
        self,
        buf: Any,
        size: int,
        pos: int,
        count: int,
        key_pos: Any,
        key_len: Any,
        value_pos: Any,
        value_len: Any,
        error: Any,
        /,
    ) -> int: ...
    def ls_fill_rows(
        self, columns: Any, first: int, n: int, buf: Any, rows: Any, /
    ) -> int: ...
    def ls_smallest(self, numbers: Any, n: int, /) -> int: ...
    def ls_first_null(self, len: Any, n: int, /) -> int: ...
    def ls_sum_lengths(self, len: Any, n: int, /) -> int: ...
    def ls_slices_from_arrow(
        self, column: Any, first: int, n: int, pos: Any, len: Any, error: Any, /
    ) -> int: ...
    def ls_measure(
        self, records: Any, magic: int, max_bytes: int, total: Any, error: Any, /
    ) -> int: ...
    def ls_encode_messages(
        self,
        records: Any,
        cursor: Any,
        count_max: int,
        magic: int,
        attributes: int,
        base_offset: int,
        out: Any,
        capacity: int,
        written: Any,
        /,
    ) -> int: ...
    def ls_encode_area(
        self,
        records: Any,
        cursor: Any,
        count_max: int,
        out: Any,
        capacity: int,
        written: Any,
        /,
    ) -> int: ...
    def ls_seal_batch(self, out: Any, capacity: int, batch: Any, /) -> int: ...
    def ls_check_producer(
        self,
        buf: Any,
        size: int,
        max_bytes: int,
        timestamp_min: int,
        columns: Any,
        walk: Any,
        records: Any,
        /,
    ) -> int: ...
    def ls_has_producer(self, buf: Any, size: int, /) -> int: ...
    def ls_check_sequences(
        self,
        table: Any,
        producers: int,
        buf: Any,
        size: int,
        now_ms: int,
        expiry_ms: int,
        /,
    ) -> int: ...
    def ls_add_sequences(
        self, table: Any, producers: int, buf: Any, size: int, /
    ) -> None: ...
    def ls_place_batches(
        self, buf: Any, size: int, offset: int, leader_epoch: int, timestamp: int, /
    ) -> int: ...
    def ls_restamp(self, buf: Any, batch: Any, timestamp: int, /) -> int: ...
    def ls_assign_offset(
        self, buf: Any, batch: Any, offset: int, leader_epoch: int, /
    ) -> int: ...
    def ls_shift_offsets(
        self, buf: Any, size: int, shift: Any, walk: Any, /
    ) -> int: ...
    def ls_plan_append(
        self,
        buf: Any,
        size: int,
        limits: Any,
        index_interval_bytes: int,
        state: Any,
        index_out: Any,
        index_capacity: int,
        time_out: Any,
        time_capacity: int,
        plan: Any,
        error: Any,
        /,
    ) -> int: ...
    def ls_encode_records(
        self,
        records: Any,
        magic: int,
        attributes: int,
        offset: int,
        leader_epoch: int,
        max_bytes: int,
        batch_max: int,
        out: Any,
        capacity: int,
        /,
    ) -> int: ...
    def ls_append_records(
        self,
        records: Any,
        magic: int,
        attributes: int,
        leader_epoch: int,
        max_bytes: int,
        batch_target: int,
        limits: Any,
        state: Any,
        out: Any,
        capacity: int,
        index_out: Any,
        time_out: Any,
        entries_max: int,
        plan: Any,
        error: Any,
        /,
    ) -> int: ...
    def ls_offset_index_floor(
        self,
        entries: Any,
        count: int,
        relative_offset: int,
        found_offset: Any,
        found_pos: Any,
        /,
    ) -> int: ...
    def ls_time_index_floor(
        self,
        entries: Any,
        count: int,
        timestamp: int,
        found_timestamp: Any,
        found_offset: Any,
        /,
    ) -> int: ...
    def ls_offset_index_check(
        self, entries: Any, count: int, file_size: int, /
    ) -> int: ...
    def ls_check_indexes(self, buf: Any, size: int, check: Any, /) -> None: ...
    def ls_verify(
        self,
        buf: Any,
        size: int,
        checks: int,
        columns: Any,
        check: Any,
        walk: Any,
        /,
    ) -> int: ...
    def ls_time_index_check(self, entries: Any, count: int, /) -> int: ...
    LS_MAP_SLOT_BYTES: Final[int]
    LS_COMPACT_RECORDS_MIN: Final[int]
    LS_VERDICT_KEEP: Final[int]
    LS_VERDICT_REMOVE: Final[int]
    LS_VERDICT_REWRITE: Final[int]
    LS_VERDICT_EMPTY: Final[int]

    def ls_hash_key(self, secret: Any, key: Any, size: int, out: Any, /) -> None: ...
    def ls_map_batches(
        self,
        map: Any,
        outcomes: Any,
        buf: Any,
        size: int,
        checks: int,
        columns: Any,
        walk: Any,
        /,
    ) -> int: ...
    def ls_map_payload(
        self,
        map: Any,
        batch: Any,
        payload: Any,
        size: int,
        checks: int,
        columns: Any,
        error: Any,
        /,
    ) -> int: ...
    def ls_scan_producers(
        self, buf: Any, size: int, checks: int, out: Any, capacity: int, walk: Any, /
    ) -> int: ...
    def ls_compact_batches(
        self,
        how: Any,
        buf: Any,
        size: int,
        checks: int,
        columns: Any,
        states: Any,
        out: Any,
        capacity: int,
        bytes: Any,
        walk: Any,
        done: Any,
        /,
    ) -> int: ...
    def ls_compact_payload(
        self,
        how: Any,
        batch: Any,
        payload: Any,
        size: int,
        checks: int,
        columns: Any,
        states: Any,
        out: Any,
        capacity: int,
        bytes: Any,
        made: Any,
        done: Any,
        error: Any,
        /,
    ) -> int: ...
    def ls_group_renumber(
        self,
        batch: Any,
        size: int,
        places: Any,
        base_offset: int,
        now_ms: int,
        offset: int,
        proof: int,
        /,
    ) -> int: ...
    def ls_group_move_point(self, point: Any, size: int, /) -> None: ...
    def ls_murmur2(self, data: Any, size: int, /) -> int: ...
    def ls_partition_keys(
        self, keys: Any, n: int, partitions: int, out: Any, /
    ) -> None: ...
    def ls_sys_read(self, fd: int, out: Any, size: int, file_pos: int, /) -> int: ...
    def ls_sys_read_cached(
        self, fd: int, out: Any, size: int, file_pos: int, /
    ) -> int: ...
    def ls_sys_write(self, fd: int, data: Any, size: int, file_pos: int, /) -> int: ...
    def ls_sys_sync(self, fd: int, /) -> int: ...
    def ls_sys_sync_files(
        self, fds: Any, results: Any, count: int, other: Any, /
    ) -> int: ...
    def ls_sys_sync_all(self, fd: int, /) -> int: ...
    def ls_sys_open(
        self, dir_fd: int, name: bytes, flags: int, mode: int, /
    ) -> int: ...
    def ls_sys_open_file(
        self, dir_fd: int, name: bytes, flags: int, mode: int, /
    ) -> int: ...
    def ls_sys_read_name(
        self, dir_fd: int, name: bytes, out: Any, capacity: int, size: Any, /
    ) -> int: ...
    def ls_sys_close(self, fd: int, /) -> int: ...
    def ls_sys_truncate(self, fd: int, size: int, /) -> int: ...
    def ls_sys_rename(
        self, from_fd: int, old: bytes, to_fd: int, new: bytes, /
    ) -> int: ...
    def ls_sys_unlink(self, dir_fd: int, name: bytes, /) -> int: ...
    def ls_sys_stat(self, fd: int, name: Any, out: Any, /) -> int: ...
    def ls_sys_returning_writers(self, change: int, /) -> int: ...
    def ls_sys_hold_lock(self, fd: int, /) -> int: ...
    def ls_sys_new_watch(self) -> int: ...
    def ls_sys_add_watch(self, fd: int, path: bytes, what: int, /) -> int: ...
    def ls_sys_remove_watch(self, fd: int, number: int, /) -> int: ...
    def ls_sys_read_reports(
        self, fd: int, event: int, milliseconds: int, out: Any, capacity: int, /
    ) -> int: ...
    def ls_sys_reserve(self, fd: int, file_pos: int, bytes: int, /) -> int: ...
    def ls_sys_write_back(self, fd: int, file_pos: int, bytes: int, /) -> int: ...
    def ls_sys_look(
        self,
        dir_fd: int,
        name: bytes,
        names: bytes,
        names_bytes: int,
        count: int,
        before: Any,
        out: Any,
        /,
    ) -> int: ...
    def ls_sys_steps(self, steps: Any, count: int, error: Any, /) -> int: ...
    def ls_sys_fs_type(self, fd: int, /) -> int: ...

lib: _Lib
