/*
 * ls_group_api.h - the part of ls_api.h that is about consumer groups: by the same rules, after that file.
 */

/* Give the batch of one committed offset of a group (magic 2, not compressed, no producer) other numbers: its offset, its
   times, and in the value of its record the offset, the time and the proof, which stand at the three `places` of the
   batch (0 for the proof: the record has no proof); then its CRC.  0, or -1 if a place is outside of the records. */
int32_t ls_group_renumber(uint8_t *batch, int64_t size, const int64_t *places, int64_t base_offset, int64_t now_ms,
                          int64_t offset, int64_t proof);

/* One place of a durable point (docs/format.md): so long, and the size of the file in it, little-endian as its CRC. */
#define LS_GROUP_POINT_BYTES 48
#define LS_GROUP_POINT_SIZE_POS 8
/* Give a durable point another size of the same file. */
void ls_group_move_point(uint8_t *point, int64_t size);
