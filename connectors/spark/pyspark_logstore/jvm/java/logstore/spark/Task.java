package logstore.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import logstore.format.AbortedRanges;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.HasPartitionKey;
import org.apache.spark.unsafe.types.UTF8String;

/** The reads of one Spark task, planned by logstore's Python (pyspark_logstore/jvm/plans.py). */
final class Task implements HasPartitionKey {
    private static final long serialVersionUID = 1L;

    /** The bytes to read of one file. */
    static final class Piece implements Serializable {
        private static final long serialVersionUID = 1L;
        final String path;
        final long inode;
        /** Position at which reading begins, and the size that the file had. */
        final long position;
        final long size;
        /** The offset before {@link #position}, or {@code Decoder.UNKNOWN}. */
        final long before;
        /** All offsets of the segment are below it. */
        final long nextOffset;
        final boolean contiguous;

        Piece(JsonNode node) {
            path = node.get("path").asText();
            inode = node.get("inode").asLong();
            position = node.get("position").asLong();
            size = node.get("size").asLong();
            before = node.get("before").asLong();
            nextOffset = node.get("next").asLong();
            contiguous = node.get("contiguous").asBoolean();
        }
    }

    /** A range of offsets of one partition. */
    static final class Range implements Serializable {
        private static final long serialVersionUID = 1L;
        final String topic;
        final int partition;
        final long start;
        final long stop;
        final boolean stopsAtTransactions;
        final AbortedRanges aborted;
        /** The plan is valid as long as the log is unchanged below this offset. */
        final long upto;
        final int decompressedMax;
        final Guard guard;
        /** Null if the range is left to Python. */
        final List<Piece> pieces;

        Range(JsonNode node) {
            topic = node.get("topic").asText();
            partition = node.get("partition").asInt();
            start = node.get("start").asLong();
            stop = node.get("stop").asLong();
            stopsAtTransactions = node.get("transactions").asText().equals("unknown");
            JsonNode known = node.get("aborted");
            long[][] triples = new long[known.size()][3];
            for (int i = 0; i < triples.length; i++) {
                for (int field = 0; field < 3; field++) {
                    triples[i][field] = known.get(i).get(field).asLong();
                }
            }
            aborted = new AbortedRanges(triples);
            upto = node.get("upto").asLong();
            decompressedMax = node.get("decompressed_max").asInt();
            JsonNode listed = node.get("pieces");
            if (listed.isNull()) {
                pieces = null;
                guard = null;
            } else {
                pieces = new ArrayList<>();
                listed.forEach(piece -> pieces.add(new Piece(piece)));
                guard = new Guard(node.get("guard"));
            }
        }
    }

    final List<Range> ranges = new ArrayList<>();
    /** The task in the form of Python, for ranges that are left to it. */
    final String planned;
    final int limit;

    Task(JsonNode node, int limit) {
        node.get("ranges").forEach(range -> ranges.add(new Range(range)));
        planned = node.get("task").asText();
        this.limit = limit;
    }

    /** The topic and partition of its first range: Spark asks for it if every task has just one. */
    @Override
    public InternalRow partitionKey() {
        Range first = ranges.get(0);
        return new GenericInternalRow(new Object[] {UTF8String.fromString(first.topic), first.partition});
    }

    static Task[] all(JsonNode plan, int limit) {
        List<Task> tasks = new ArrayList<>();
        plan.get("tasks").forEach(task -> tasks.add(new Task(task, limit)));
        return tasks.toArray(new Task[0]);
    }
}
