package logstore.format;

import com.github.luben.zstd.RecyclingBufferPool;
import com.github.luben.zstd.ZstdInputStreamNoFinalizer;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.util.zip.GZIPInputStream;
import net.jpountz.lz4.LZ4FrameInputStream;
import org.xerial.snappy.Snappy;

/** Decompresses the payload of a batch, with the libraries of Spark. */
final class Decompressor {
    private static final int GZIP = 1;
    private static final int SNAPPY = 2;
    private static final int LZ4 = 3;
    private static final int ZSTD = 4;
    private static final byte[] XERIAL = {(byte) 0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0};
    private static final int XERIAL_HEADER_BYTES = 16;
    private static final int GZIP_INPUT_BYTES = 1 << 16;

    private Decompressor() {}

    /**
     * Append the content of a stream to {@code out}.
     *
     * @param position of the batch, for the exception
     */
    static void decompress(int codec, byte[] data, int pos, int length, Output out, int position)
            throws InvalidBatchException {
        try {
            if (codec == SNAPPY) {
                snappy(data, pos, length, out, position);
                return;
            }
            if (codec == LZ4) {
                checkLz4(data, pos, pos + length, position);
            }
            InputStream in = new ByteArrayInputStream(data, pos, length);
            try (InputStream stream = open(codec, in, data, pos, length, position)) {
                int room = out.reserve(1, position);
                while (true) {
                    int n = stream.read(out.bytes, out.size, room);
                    if (n < 0) {
                        break;
                    }
                    out.size += n;
                    room -= n;
                    if (room == 0) {
                        int next = stream.read();
                        if (next < 0) {
                            break;
                        }
                        room = out.reserve(1, position) - 1;
                        out.bytes[out.size++] = (byte) next;
                        if (room == 0) {
                            room = out.reserve(1, position);
                        }
                    }
                }
                if (stream instanceof Gzip gzip && !gzip.isWhole()) {
                    throw new InvalidBatchException("bytes after the gzip stream", position);
                }
            }
        } catch (IOException | RuntimeException | LinkageError error) {
            throw new InvalidBatchException("the compressed stream: " + error.getMessage(), position);
        }
    }

    private static InputStream open(
            int codec, InputStream in, byte[] data, int pos, int length, int position)
            throws IOException, InvalidBatchException {
        switch (codec) {
            case GZIP:
                if (length > 3 && (data[pos + 3] & 0xe0) != 0) { // zlib refuses unknown flags
                    throw new InvalidBatchException("flags of gzip", position);
                }
                return new Gzip(in);
            case LZ4:
                return new LZ4FrameInputStream(in, true);
            case ZSTD:
                return new ZstdInputStreamNoFinalizer(in, RecyclingBufferPool.INSTANCE);
            default:
                throw new InvalidBatchException("codec " + codec, position);
        }
    }

    /** Checks the end: Java's reader accepts any bytes after a stream. */
    private static final class Gzip extends GZIPInputStream {
        private static final int TRAILER_BYTES = 8;

        Gzip(InputStream in) throws IOException {
            super(in, GZIP_INPUT_BYTES);
        }

        boolean isWhole() throws IOException {
            return inf.getRemaining() <= TRAILER_BYTES && in.available() == 0;
        }
    }

    private static void snappy(byte[] data, int pos, int length, Output out, int position)
            throws IOException, InvalidBatchException {
        if (!isXerial(data, pos, length)) {
            block(data, pos, length, out, position);
            return;
        }
        int end = pos + length;
        int at = pos + XERIAL_HEADER_BYTES;
        if (at > end) {
            throw new InvalidBatchException("the xerial header ends early", position);
        }
        while (at < end) {
            if (end - at < 4) {
                throw new InvalidBatchException("a xerial chunk has no length", position);
            }
            int size = Bytes.int32(data, at);
            at += 4;
            if (size < 0 || size > end - at) {
                throw new InvalidBatchException("a xerial chunk is too long", position);
            }
            block(data, at, size, out, position);
            at += size;
        }
    }

    /** Check the blocks of a frame: libraries differ in their treatment of empty ones. */
    private static void checkLz4(byte[] data, int pos, int end, int position) throws InvalidBatchException {
        if (end - pos < 7) {
            throw new InvalidBatchException("the lz4 frame ends early", position);
        }
        int flags = data[pos + 4];
        boolean hasBlockChecksums = (flags & 0x10) != 0;
        long at = pos + 7 + ((flags & 0x08) != 0 ? 8 : 0) + ((flags & 0x01) != 0 ? 4 : 0);
        while (end - at >= 4) {
            int word = Integer.reverseBytes(Bytes.int32(data, (int) at));
            int size = word & 0x7fffffff;
            if (word == 0) {
                return;
            }
            if (size == 0) {
                throw new InvalidBatchException("an empty lz4 block", position);
            }
            at += 4L + size + (hasBlockChecksums ? 4 : 0);
        }
        throw new InvalidBatchException("the lz4 frame ends early", position);
    }

    private static boolean isXerial(byte[] data, int pos, int length) {
        if (length < XERIAL.length) {
            return false;
        }
        for (int i = 0; i < XERIAL.length; i++) {
            if (data[pos + i] != XERIAL[i]) {
                return false;
            }
        }
        return true;
    }

    private static void block(byte[] data, int pos, int length, Output out, int position)
            throws IOException, InvalidBatchException {
        int size = Snappy.uncompressedLength(data, pos, length);
        // A block of n bytes cannot expand to more than about 32 n: a far larger length is damage.
        if (size < 0 || size > 64L * length + 64) {
            throw new InvalidBatchException("a snappy block claims " + size + " bytes", position);
        }
        out.reserve(size, position);
        int n = Snappy.uncompress(data, pos, length, out.bytes, out.size);
        if (n != size) {
            throw new InvalidBatchException("a snappy block has " + n + " bytes, not " + size, position);
        }
        out.size += n;
    }
}
