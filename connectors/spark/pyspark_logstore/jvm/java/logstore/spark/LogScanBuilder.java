package logstore.spark;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.types.StructType;

/** Collects the needs of a query: columns, ranges, a limit, counts. */
final class LogScanBuilder
        implements SupportsPushDownRequiredColumns,
                SupportsPushDownV2Filters,
                SupportsPushDownLimit,
                SupportsPushDownAggregates {
    /** Comparisons by Spark's name; each with the one for exchanged sides. */
    private static final Map<String, String> COMPARISONS =
            Map.of("=", "=", "<=>", "=", ">", "<", ">=", "<=", "<", ">", "<=", ">=");

    private final Map<String, String> options;
    private StructType schema;
    private final ArrayNode conditions = Json.MAPPER.createArrayNode();
    private Predicate[] pushed = new Predicate[0];
    /** Whether the ranges of the scan alone satisfy all filters. */
    private boolean isExact = true;
    private int limit = -1;
    /** The scan without a limit, for which the counts were determined; and its counts, or null. */
    private LogScan uncounted;
    private LogCounts counts;

    LogScanBuilder(StructType schema, Map<String, String> options) {
        this.schema = schema;
        this.options = options;
    }

    /** Keep whole columns: Spark takes the needed parts of them. */
    @Override
    public void pruneColumns(StructType required) {
        StructType pruned = new StructType();
        for (String name : required.fieldNames()) {
            pruned = pruned.add(schema.apply(name));
        }
        schema = pruned;
    }

    /** Returns the predicates that the scan does not satisfy: Spark filters the rows by them. */
    @Override
    public Predicate[] pushPredicates(Predicate[] predicates) {
        List<Predicate> mine = new ArrayList<>();
        List<Predicate> left = new ArrayList<>();
        for (Predicate predicate : predicates) {
            ObjectNode condition = condition(predicate);
            if (condition == null) {
                left.add(predicate);
                continue;
            }
            conditions.add(condition);
            // A time only excludes records, and so does a list of offsets: there are others between its
            // first and last.
            String column = condition.get("column").asText();
            String is = condition.get("is").asText();
            if (column.equals("timestamp") || (column.equals("offset") && is.equals("in"))) {
                left.add(predicate);
            } else {
                mine.add(predicate);
            }
        }
        pushed = mine.toArray(new Predicate[0]);
        isExact = left.isEmpty();
        return left.toArray(new Predicate[0]);
    }

    @Override
    public Predicate[] pushedPredicates() {
        return pushed;
    }

    /** A comparison of a column with values; null for other predicates. */
    private static ObjectNode condition(Predicate predicate) {
        Expression[] children = predicate.children();
        if (children.length == 0) {
            return null;
        }
        boolean isTurned = children[0] instanceof Literal;
        Expression first = children[isTurned && children.length == 2 ? 1 : 0];
        if (!(first instanceof NamedReference reference) || reference.fieldNames().length != 1) {
            return null;
        }
        String column = reference.fieldNames()[0];
        if (!List.of("topic", "partition", "offset", "timestamp").contains(column)) {
            return null;
        }
        ObjectNode condition = Json.MAPPER.createObjectNode().put("column", column);
        ArrayNode values = condition.putArray("values");
        String name = predicate.name();
        if (name.equals("IS_NOT_NULL")) {
            return condition.put("is", "not null");
        }
        if (name.equals("IN") && !isTurned) {
            condition.put("is", "in");
        } else if (COMPARISONS.containsKey(name) && children.length == 2) {
            if (!isTurned && name.equals("<=>")) {
                name = "=";
            }
            condition.put("is", isTurned ? COMPARISONS.get(name) : name);
        } else {
            return null;
        }
        for (int i = 0; i < children.length; i++) {
            if (children[i] == first) {
                continue;
            }
            if (!(children[i] instanceof Literal<?> literal) || literal.value() == null) {
                return null;
            }
            if (literal.value() instanceof Number number) {
                values.add(number.longValue());
            } else {
                values.add(literal.value().toString());
            }
        }
        return condition;
    }

    @Override
    public boolean pushLimit(int wanted) {
        limit = wanted;
        return true;
    }

    @Override
    public boolean isPartiallyPushed() {
        return true; // each task stops there
    }

    @Override
    public boolean supportCompletePushDown(Aggregation aggregation) {
        return pushAggregation(aggregation);
    }

    /** Counts, and the first and last offset, if the plan alone determines them. */
    @Override
    public boolean pushAggregation(Aggregation aggregation) {
        if (!isExact || aggregation.groupByExpressions().length > 0) {
            return false;
        }
        List<String> functions = new ArrayList<>();
        for (AggregateFunc function : aggregation.aggregateExpressions()) {
            if (function instanceof CountStar) {
                functions.add("count");
            } else if (function instanceof Min min && isOffset(min.column())) {
                functions.add("min");
            } else if (function instanceof Max max && isOffset(max.column())) {
                functions.add("max");
            } else {
                return false;
            }
        }
        if (uncounted == null) {
            uncounted = new LogScan(schema, options, conditions, pushed, -1);
        }
        counts = LogCounts.of(uncounted, functions);
        return counts != null;
    }

    private static boolean isOffset(Expression column) {
        return column instanceof NamedReference reference
                && reference.fieldNames().length == 1
                && reference.fieldNames()[0].equals("offset");
    }

    @Override
    public Scan build() {
        if (counts != null) {
            return counts;
        }
        LogScan scan = new LogScan(schema, options, conditions, pushed, limit);
        if (uncounted != null) {
            scan.takePlan(uncounted);
        }
        return scan;
    }
}
