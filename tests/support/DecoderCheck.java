import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.BufferedOutputStream;
import java.io.EOFException;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.nio.ByteBuffer;
import java.util.zip.CRC32;
import logstore.format.Decoder;
import logstore.format.InvalidBatchException;
import logstore.format.Rows;

/**
 * Decodes the inputs of a file, and writes for each what came of it: how it ended, where, how many rows,
 * and a checksum of them. java_decoder.py compares this with what the C core says.
 */
public final class DecoderCheck {
    private static final CRC32 CRC = new CRC32();
    private static final ByteBuffer ROW = ByteBuffer.allocate(21);

    public static void main(String[] arguments) throws Exception {
        try (DataInputStream in = new DataInputStream(
                        new BufferedInputStream(new FileInputStream(arguments[0]), 1 << 20));
                DataOutputStream out = new DataOutputStream(
                        new BufferedOutputStream(new FileOutputStream(arguments[1]), 1 << 20))) {
            Rows rows = new Rows(Integer.parseInt(arguments[2]), Rows.ALL);
            while (true) {
                int size;
                try {
                    size = in.readInt();
                } catch (EOFException end) {
                    return;
                }
                boolean contiguous = in.readByte() != 0;
                int limit = in.readInt();
                long before = in.readLong();
                long start = in.readLong();
                long stop = in.readLong();
                byte[] data = new byte[size];
                in.readFully(data);
                one(data, contiguous, limit, before, start, stop, rows, out);
            }
        }
    }

    private static void one(byte[] data, boolean contiguous, int limit, long before, long start, long stop,
            Rows rows, DataOutputStream out) throws Exception {
        Decoder decoder = new Decoder(limit);
        decoder.contiguous = contiguous;
        decoder.lastOffset = before;
        CRC.reset();
        int count = 0;
        int end = -1;
        while (end < 0) {
            try {
                switch (decoder.decode(data, data.length, start, stop, rows)) {
                    case END:
                    case ZEROS:
                        end = 0;
                        break;
                    case OFFSET:
                        end = 1;
                        break;
                    case FULL:
                        if (rows.count == 0) {
                            throw new AssertionError("full without a row");
                        }
                        break;
                    default:
                        throw new AssertionError("a transaction");
                }
            } catch (InvalidBatchException invalid) {
                end = 2;
            }
            for (int i = 0; i < rows.count; i++) {
                ROW.clear();
                ROW.putLong(rows.offset[i]).putLong(rows.timestamp[i]).put(rows.timestampType[i]);
                ROW.putInt(rows.headerCount[i]);
                CRC.update(ROW.array(), 0, 21);
                bytes(rows.data, rows.keyPos[i], rows.keyLength[i]);
                bytes(rows.data, rows.valuePos[i], rows.valueLength[i]);
            }
            count += rows.count;
        }
        out.writeByte(end);
        out.writeInt(decoder.pos);
        out.writeInt(count);
        out.writeInt((int) CRC.getValue());
    }

    private static void bytes(byte[] data, int pos, int length) {
        ROW.clear();
        ROW.putInt(length);
        CRC.update(ROW.array(), 0, 4);
        if (length > 0) {
            CRC.update(data, pos, length);
        }
    }
}
