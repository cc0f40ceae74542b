/*
 * ls_gil.h - when a call of the core gives the interpreter lock away: included in the code that cffi generates, which
 * does so at every call.
 *
 * To give it away and to get it back costs little alone, but while another thread runs Python it costs a whole switch
 * interval (5 ms): a batch that is decoded in 20 us then takes 250 times as long.  So a call keeps the lock unless it
 * has more to do than LS_GIL_BYTES, some 50 us; threads that work side by side use larger buffers.
 */
#ifndef LS_GIL_H
#define LS_GIL_H

#define LS_GIL_BYTES (256 * 1024)
#define LS_GIL_RECORDS (LS_GIL_BYTES / 16)

#undef Py_BEGIN_ALLOW_THREADS
#undef Py_END_ALLOW_THREADS
#define Py_BEGIN_ALLOW_THREADS {
#define Py_END_ALLOW_THREADS }

/* The result of a call that is made with the interpreter lock, or, where `is_long`, without it. */
#define LS_GIL_CALL(is_long, call)                                                                                     \
    __extension__({                                                                                                    \
        PyThreadState *ls_gil_thread = (is_long) ? PyEval_SaveThread() : NULL;                                         \
        __typeof__(call) ls_gil_result = (call);                                                                       \
        if (ls_gil_thread != NULL) {                                                                                   \
            PyEval_RestoreThread(ls_gil_thread);                                                                       \
        }                                                                                                              \
        ls_gil_result;                                                                                                 \
    })
#define LS_GIL_SIZE(size, call) LS_GIL_CALL((size) > LS_GIL_BYTES, call)
#define LS_GIL_COUNT(count, call) LS_GIL_CALL((count) > LS_GIL_RECORDS, call)

#define ls_crc32(crc, data, size) LS_GIL_SIZE(size, ls_crc32(crc, data, size))
#define ls_crc32c(crc, data, size) LS_GIL_SIZE(size, ls_crc32c(crc, data, size))
#define ls_scan_batches(buf, size, ...) LS_GIL_SIZE(size, ls_scan_batches(buf, size, __VA_ARGS__))
#define ls_seek_batch(buf, size, ...) LS_GIL_SIZE(size, ls_seek_batch(buf, size, __VA_ARGS__))
#define ls_decode(buf, size, ...) LS_GIL_SIZE(size, ls_decode(buf, size, __VA_ARGS__))
#define ls_verify(buf, size, ...) LS_GIL_SIZE(size, ls_verify(buf, size, __VA_ARGS__))
#define ls_decode_payload(batch, payload, size, ...)                                                                   \
    LS_GIL_SIZE(size, ls_decode_payload(batch, payload, size, __VA_ARGS__))
#define ls_count_inner(payload, size, ...) LS_GIL_SIZE(size, ls_count_inner(payload, size, __VA_ARGS__))
/* The bytes are estimated: a column has room for a whole batch's likely needs. */
#define ls_fill_rows(columns, first, n, buf, rows)                                                                     \
    LS_GIL_CALL((n) > LS_GIL_RECORDS / 8                                                                               \
                    || (rows)->value.data_capacity / ((rows)->capacity + 1) * (n) > LS_GIL_BYTES,                      \
                ls_fill_rows(columns, first, n, buf, rows))
#define ls_slices_from_arrow(column, first, n, ...)                                                                    \
    LS_GIL_COUNT(n, ls_slices_from_arrow(column, first, n, __VA_ARGS__))
#define ls_first_null(len, n) LS_GIL_COUNT(n, ls_first_null(len, n))
#define ls_smallest(numbers, n) LS_GIL_COUNT(n, ls_smallest(numbers, n))
#define ls_measure(records, ...) LS_GIL_COUNT((records)->count, ls_measure(records, __VA_ARGS__))
#define ls_encode_messages(records, cursor, count, magic, attributes, base, out, capacity, written)                    \
    LS_GIL_SIZE(capacity, ls_encode_messages(records, cursor, count, magic, attributes, base, out, capacity, written))
#define ls_encode_area(records, cursor, count, out, capacity, written)                                                 \
    LS_GIL_SIZE(capacity, ls_encode_area(records, cursor, count, out, capacity, written))
#define ls_seal_batch(out, capacity, batch) LS_GIL_SIZE(capacity, ls_seal_batch(out, capacity, batch))
#define ls_shift_offsets(buf, size, ...) LS_GIL_SIZE(size, ls_shift_offsets(buf, size, __VA_ARGS__))
#define ls_map_batches(map, outcomes, buf, size, ...)                                                                  \
    LS_GIL_SIZE(size, ls_map_batches(map, outcomes, buf, size, __VA_ARGS__))
#define ls_map_payload(map, batch, payload, size, ...)                                                                 \
    LS_GIL_SIZE(size, ls_map_payload(map, batch, payload, size, __VA_ARGS__))
#define ls_scan_producers(buf, size, ...) LS_GIL_SIZE(size, ls_scan_producers(buf, size, __VA_ARGS__))
#define ls_compact_batches(how, buf, size, ...) LS_GIL_SIZE(size, ls_compact_batches(how, buf, size, __VA_ARGS__))
#define ls_compact_payload(how, batch, payload, size, ...)                                                             \
    LS_GIL_SIZE(size, ls_compact_payload(how, batch, payload, size, __VA_ARGS__))
#define ls_check_producer(buf, size, ...) LS_GIL_SIZE(size, ls_check_producer(buf, size, __VA_ARGS__))
#define ls_place_batches(buf, size, ...) LS_GIL_SIZE(size, ls_place_batches(buf, size, __VA_ARGS__))
#define ls_restamp(buf, batch, timestamp) LS_GIL_SIZE((batch)->size, ls_restamp(buf, batch, timestamp))
#define ls_offset_index_check(entries, count, size) LS_GIL_COUNT(count, ls_offset_index_check(entries, count, size))
#define ls_time_index_check(entries, count) LS_GIL_COUNT(count, ls_time_index_check(entries, count))
#define ls_plan_append(buf, size, ...) LS_GIL_SIZE(size, ls_plan_append(buf, size, __VA_ARGS__))
/* A write goes to the page cache; a read that would wait for a disk gives the lock away. */
#define ls_sys_write(fd, data, size, pos) LS_GIL_SIZE(size, ls_sys_write(fd, data, size, pos))
#define ls_sys_read(fd, out, size, pos)                                                                                \
    __extension__({                                                                                                    \
        int64_t ls_gil_n = (size) > LS_GIL_BYTES ? -1 : ls_sys_read_cached(fd, out, size, pos);                        \
        ls_gil_n < 0 ? LS_GIL_CALL(1, ls_sys_read(fd, out, size, pos)) : ls_gil_n;                                     \
    })
/*
 * These wait for the system, and writers make many of them for one roll or deletion.  A thread that reads records holds
 * the interpreter lock for a switch interval each time: so it asks how many threads wait after such a call, and gives
 * the lock away if there is one (`pyrecords_give_way`).
 */
#define LS_GIL_WRITER(call)                                                                                            \
    __extension__({                                                                                                    \
        PyThreadState *ls_gil_thread = PyEval_SaveThread();                                                            \
        __typeof__(call) ls_gil_result = (call);                                                                       \
        (void)ls_sys_returning_writers(1);                                                                             \
        PyEval_RestoreThread(ls_gil_thread);                                                                           \
        (void)ls_sys_returning_writers(-1);                                                                            \
        ls_gil_result;                                                                                                 \
    })
#define ls_sys_sync(fd) LS_GIL_WRITER(ls_sys_sync(fd))
#define ls_sys_sync_files(fds, results, count, other) LS_GIL_WRITER(ls_sys_sync_files(fds, results, count, other))
#define ls_sys_sync_all(fd) LS_GIL_WRITER(ls_sys_sync_all(fd))
#define ls_sys_reserve(fd, pos, bytes) LS_GIL_WRITER(ls_sys_reserve(fd, pos, bytes))
#define ls_sys_write_back(fd, pos, bytes) LS_GIL_WRITER(ls_sys_write_back(fd, pos, bytes))
#define ls_sys_open(dir_fd, name, flags, mode) LS_GIL_WRITER(ls_sys_open(dir_fd, name, flags, mode))
#define ls_sys_open_file(dir_fd, name, flags, mode) LS_GIL_WRITER(ls_sys_open_file(dir_fd, name, flags, mode))
#define ls_sys_read_name(dir_fd, name, ...) LS_GIL_WRITER(ls_sys_read_name(dir_fd, name, __VA_ARGS__))
#define ls_sys_close(fd) LS_GIL_WRITER(ls_sys_close(fd))
#define ls_sys_truncate(fd, size) LS_GIL_WRITER(ls_sys_truncate(fd, size))
#define ls_sys_rename(from_fd, from, to_fd, to) LS_GIL_WRITER(ls_sys_rename(from_fd, from, to_fd, to))
#define ls_sys_unlink(dir_fd, name) LS_GIL_WRITER(ls_sys_unlink(dir_fd, name))
#define ls_sys_stat(fd, name, out) LS_GIL_WRITER(ls_sys_stat(fd, name, out))
#define ls_sys_steps(steps, count, error) LS_GIL_WRITER(ls_sys_steps(steps, count, error))
/* This waits, too. */
#define ls_sys_read_reports(fd, event, milliseconds, ...)                                                              \
    LS_GIL_CALL(1, ls_sys_read_reports(fd, event, milliseconds, __VA_ARGS__))
#define ls_sys_add_watch(fd, path, what) LS_GIL_CALL(1, ls_sys_add_watch(fd, path, what))
#define ls_sys_fs_type(fd) LS_GIL_CALL(1, ls_sys_fs_type(fd))
#define ls_sys_look(fd, names, ...) LS_GIL_CALL(1, ls_sys_look(fd, names, __VA_ARGS__))

#endif
