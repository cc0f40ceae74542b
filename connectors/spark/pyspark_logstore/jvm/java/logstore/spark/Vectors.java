package logstore.spark;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import logstore.format.Rows;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** The columns of the source as Spark reads them: values are copied on access only. */
final class Vectors {
    static final StructType HEADER = new StructType()
            .add("key", DataTypes.StringType)
            .add("value", DataTypes.BinaryType);

    private Vectors() {}

    /** The topic and partition in the constant columns. */
    static final class Place {
        UTF8String topic;
        int partition;
    }

    static ColumnVector of(StructField field, Rows rows, Place place) {
        switch (field.name()) {
            case "key":
                return new Binary(rows, true);
            case "value":
                return new Binary(rows, false);
            case "topic":
                return new Topic(place);
            case "partition":
                return new Partition(place);
            case "offset":
                return new Offset(rows);
            case "timestamp":
                return new Timestamp(rows);
            case "timestampType":
                return new TimestampType(rows);
            case "headers":
                return new Headers(rows);
            default:
                throw new IllegalArgumentException("no column " + field.name());
        }
    }

    /** A column without nulls; each kind overrides the getter of its type. */
    private abstract static class Column extends ColumnVector {
        Column(DataType type) {
            super(type);
        }

        @Override
        public void close() {}

        @Override
        public boolean hasNull() {
            return false;
        }

        @Override
        public int numNulls() {
            return 0;
        }

        @Override
        public boolean isNullAt(int row) {
            return false;
        }

        private UnsupportedOperationException unsupported() {
            return new UnsupportedOperationException("of a column of " + type);
        }

        @Override
        public boolean getBoolean(int row) {
            throw unsupported();
        }

        @Override
        public byte getByte(int row) {
            throw unsupported();
        }

        @Override
        public short getShort(int row) {
            throw unsupported();
        }

        @Override
        public int getInt(int row) {
            throw unsupported();
        }

        @Override
        public long getLong(int row) {
            throw unsupported();
        }

        @Override
        public float getFloat(int row) {
            throw unsupported();
        }

        @Override
        public double getDouble(int row) {
            throw unsupported();
        }

        @Override
        public ColumnarArray getArray(int row) {
            throw unsupported();
        }

        @Override
        public ColumnarMap getMap(int row) {
            throw unsupported();
        }

        @Override
        public Decimal getDecimal(int row, int precision, int scale) {
            throw unsupported();
        }

        @Override
        public UTF8String getUTF8String(int row) {
            throw unsupported();
        }

        @Override
        public byte[] getBinary(int row) {
            throw unsupported();
        }

        @Override
        public ColumnVector getChild(int number) {
            throw unsupported();
        }
    }

    private static final class Topic extends Column {
        private final Place place;

        Topic(Place place) {
            super(DataTypes.StringType);
            this.place = place;
        }

        @Override
        public UTF8String getUTF8String(int row) {
            return place.topic;
        }
    }

    private static final class Partition extends Column {
        private final Place place;

        Partition(Place place) {
            super(DataTypes.IntegerType);
            this.place = place;
        }

        @Override
        public int getInt(int row) {
            return place.partition;
        }
    }

    private static final class Offset extends Column {
        private final Rows rows;

        Offset(Rows rows) {
            super(DataTypes.LongType);
            this.rows = rows;
        }

        @Override
        public long getLong(int row) {
            return rows.offset[row];
        }
    }

    private static final class Timestamp extends Column {
        private final Rows rows;

        Timestamp(Rows rows) {
            super(DataTypes.TimestampType);
            this.rows = rows;
        }

        @Override
        public boolean hasNull() {
            return true; // it may have
        }

        @Override
        public int numNulls() {
            int nulls = 0;
            for (int row = 0; row < rows.count; row++) {
                nulls += isNullAt(row) ? 1 : 0;
            }
            return nulls;
        }

        @Override
        public boolean isNullAt(int row) {
            return rows.timestamp[row] == Rows.NO_TIMESTAMP;
        }

        @Override
        public long getLong(int row) {
            return rows.timestamp[row] * 1000; // the reader has checked that it fits
        }
    }

    private static final class TimestampType extends Column {
        private final Rows rows;

        TimestampType(Rows rows) {
            super(DataTypes.IntegerType);
            this.rows = rows;
        }

        @Override
        public int getInt(int row) {
            return rows.timestampType[row];
        }
    }

    /** Keys or values. */
    private static final class Binary extends Column {
        private final Rows rows;
        private final boolean isKey;

        Binary(Rows rows, boolean isKey) {
            super(DataTypes.BinaryType);
            this.rows = rows;
            this.isKey = isKey;
        }

        private int length(int row) {
            return isKey ? rows.keyLength[row] : rows.valueLength[row];
        }

        @Override
        public boolean hasNull() {
            return true; // it may have
        }

        @Override
        public int numNulls() {
            int nulls = 0;
            for (int row = 0; row < rows.count; row++) {
                nulls += length(row) < 0 ? 1 : 0;
            }
            return nulls;
        }

        @Override
        public boolean isNullAt(int row) {
            return length(row) < 0;
        }

        @Override
        public byte[] getBinary(int row) {
            int length = length(row);
            if (length < 0) {
                return null;
            }
            int pos = isKey ? rows.keyPos[row] : rows.valuePos[row];
            return Arrays.copyOfRange(rows.data, pos, pos + length);
        }
    }

    /** An array of (key, value), or null if there are none. */
    private static final class Headers extends Column {
        private final Rows rows;

        Headers(Rows rows) {
            super(new ArrayType(HEADER, true));
            this.rows = rows;
        }

        @Override
        public boolean hasNull() {
            return true;
        }

        @Override
        public int numNulls() {
            int nulls = 0;
            for (int row = 0; row < rows.count; row++) {
                nulls += rows.headerCount[row] == 0 ? 1 : 0;
            }
            return nulls;
        }

        @Override
        public boolean isNullAt(int row) {
            return rows.headerCount[row] == 0;
        }

        @Override
        public ColumnarArray getArray(int row) {
            int count = rows.headerCount[row];
            HeaderList list = new HeaderList(rows.data, rows.headerPos[row], count);
            return new ColumnarArray(list, 0, count);
        }
    }

    /** The headers of one record. */
    private static final class HeaderList extends Column {
        private final HeaderPart keys;
        private final HeaderPart values;

        HeaderList(byte[] data, int pos, int count) {
            super(HEADER);
            int[] pos2 = new int[2 * count];
            int[] length2 = new int[2 * count];
            int p = pos;
            for (int i = 0; i < 2 * count; i++) {
                int value = 0;
                int shift = 0;
                byte b;
                do { // the decoder has checked them
                    b = data[p++];
                    value |= (b & 0x7f) << shift;
                    shift += 7;
                } while (b < 0);
                length2[i] = (value >>> 1) ^ -(value & 1);
                pos2[i] = p;
                p += Math.max(length2[i], 0);
            }
            keys = new HeaderPart(DataTypes.StringType, data, pos2, length2, 0);
            values = new HeaderPart(DataTypes.BinaryType, data, pos2, length2, 1);
        }

        @Override
        public ColumnVector getChild(int number) {
            return number == 0 ? keys : values;
        }
    }

    /** Replace invalid UTF-8 like Python: there a surrogate is three wrong bytes, in Java one. */
    private static UTF8String text(byte[] bytes) {
        for (int i = 0; i + 1 < bytes.length; i++) {
            if (bytes[i] == (byte) 0xed && (bytes[i + 1] & 0xe0) == 0xa0) {
                bytes[i] = (byte) 0xff; // is never part of a character
            }
        }
        return UTF8String.fromString(new String(bytes, StandardCharsets.UTF_8));
    }

    private static final class HeaderPart extends Column {
        private final byte[] data;
        private final int[] pos;
        private final int[] length;
        private final int first;

        HeaderPart(DataType type, byte[] data, int[] pos, int[] length, int first) {
            super(type);
            this.data = data;
            this.pos = pos;
            this.length = length;
            this.first = first;
        }

        @Override
        public boolean hasNull() {
            return true;
        }

        @Override
        public boolean isNullAt(int row) {
            return length[2 * row + first] < 0;
        }

        @Override
        public byte[] getBinary(int row) {
            int n = 2 * row + first;
            return length[n] < 0 ? null : Arrays.copyOfRange(data, pos[n], pos[n] + length[n]);
        }

        @Override
        public UTF8String getUTF8String(int row) {
            byte[] bytes = getBinary(row);
            return bytes == null ? null : text(bytes);
        }
    }
}
