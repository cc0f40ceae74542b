package logstore.format;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;

/** Reads the big-endian numbers of the format. */
public final class Bytes {
    private static final VarHandle LONG =
            MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.BIG_ENDIAN);
    private static final VarHandle INT =
            MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.BIG_ENDIAN);
    private static final VarHandle SHORT =
            MethodHandles.byteArrayViewVarHandle(short[].class, ByteOrder.BIG_ENDIAN);

    private Bytes() {}

    public static long int64(byte[] data, int pos) {
        return (long) LONG.get(data, pos);
    }

    public static int int32(byte[] data, int pos) {
        return (int) INT.get(data, pos);
    }

    static int int16(byte[] data, int pos) {
        return (short) SHORT.get(data, pos);
    }
}
