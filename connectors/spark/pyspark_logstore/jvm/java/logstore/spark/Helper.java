package logstore.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.python.PythonUtils;

/**
 * A process that runs logstore's Python and answers requests: JSON lines over pipes
 * ({@code pyspark_logstore/jvm/helper.py}). It ends when its input is closed, and so with this process.
 *
 * <p>An idle one is kept for the next caller. An object belongs to one caller at a time.
 */
final class Helper implements AutoCloseable {
    private static final Deque<Helper> IDLE = new ArrayDeque<>();
    private static final int IDLE_MAX = 4;
    private static final String MODULE = "pyspark_logstore.jvm.helper";
    private static final String PYTHON = "logstore.python";

    private final Process process;
    private final InputStream in;
    private final OutputStream out;
    /** Whether an answer is missing: it is not between two requests. */
    private boolean isBroken;

    private Helper(Process process) {
        this.process = process;
        this.in = new BufferedInputStream(process.getInputStream(), 1 << 16);
        this.out = process.getOutputStream();
    }

    /** An idle process, or a new one. */
    static Helper take() {
        synchronized (IDLE) {
            Helper helper;
            while ((helper = IDLE.pollLast()) != null) {
                if (helper.process.isAlive()) {
                    return helper;
                }
            }
        }
        return start();
    }

    /** Make one request. */
    static JsonNode askOnce(ObjectNode request) {
        Helper helper = take();
        try {
            return helper.ask(request);
        } finally {
            helper.giveBack();
        }
    }

    /** Keep the process for the next caller. It must be between two requests. */
    void giveBack() {
        synchronized (IDLE) {
            if (IDLE.size() < IDLE_MAX && !isBroken && process.isAlive()) {
                IDLE.addLast(this);
                return;
            }
        }
        close();
    }

    @Override
    public void close() {
        process.destroyForcibly();
    }

    private static Helper start() {
        String python = python();
        ProcessBuilder builder = new ProcessBuilder(List.of(python, "-m", MODULE));
        builder.redirectError(ProcessBuilder.Redirect.INHERIT);
        String path = PythonUtils.sparkPythonPath();
        String given = builder.environment().get("PYTHONPATH");
        if (given != null && !given.isEmpty()) {
            path = given + File.pathSeparator + path;
        }
        builder.environment().put("PYTHONPATH", path);
        try {
            return new Helper(builder.start());
        } catch (IOException error) {
            throw new RuntimeException(
                    "cannot run " + python + ", the Python that plans the reads of logstore-jvm"
                            + ": set spark.pyspark.python to a Python that has logstore installed",
                    error);
        }
    }

    private static String python() {
        String property = System.getProperty(PYTHON, "");
        if (!property.isEmpty()) {
            return property;
        }
        String value = configuredPython();
        return value.isEmpty() ? "python3" : value;
    }

    /** The Python that is configured for this process; "" if none is. */
    private static String configuredPython() {
        SparkEnv env = SparkEnv.get();
        String value = env == null ? "" : env.conf().get("spark.pyspark.python", "");
        if (value.isEmpty()) {
            value = System.getenv("PYSPARK_PYTHON");
        }
        return value == null ? "" : value;
    }

    /**
     * In the driver: the Python that executors run, like Spark's own functions; "" if unknown.
     * {@code logstore.spark.register} sets the property.
     */
    static String pythonOfWorkers() {
        String property = System.getProperty("logstore.worker.python", "");
        return property.isEmpty() ? configuredPython() : property;
    }

    /** In an executor: run this Python, which the driver has named. The driver uses its own. */
    static void usePython(String python) {
        if (!python.isEmpty() && System.getProperty(PYTHON, "").isEmpty()) {
            System.setProperty(PYTHON, python);
        }
    }

    /**
     * Make a request, and return the answer.
     *
     * @throws IllegalArgumentException an invalid option
     * @throws RuntimeException every other error that Python reports, or its end. It is not a class of ours:
     *     the driver loads the exceptions of tasks by a class loader that may lack this jar.
     */
    JsonNode ask(ObjectNode request) {
        send(request);
        return answer();
    }

    private void send(ObjectNode request) {
        try {
            out.write((request + "\n").getBytes(StandardCharsets.UTF_8));
            out.flush();
        } catch (IOException error) {
            throw gone(error);
        }
    }

    private RuntimeException gone(IOException error) {
        isBroken = true;
        close();
        return new RuntimeException(
                "logstore's Python process (" + python() + " -m " + MODULE
                        + ") has exited: see its standard error. logstore must be installed in that Python",
                error);
    }

    JsonNode answer() {
        ByteArrayOutputStream line = new ByteArrayOutputStream();
        try {
            int b;
            while ((b = in.read()) != '\n') {
                if (b < 0) {
                    throw new IOException("end of its output");
                }
                line.write(b);
            }
        } catch (IOException error) {
            throw gone(error);
        }
        JsonNode reply = Json.parse(line.toString(StandardCharsets.UTF_8));
        JsonNode error = reply.get("error");
        if (error != null) {
            String message = error.get("message").asText();
            if (error.get("type").asText().equals("ConfigError")) {
                throw new IllegalArgumentException(message);
            }
            throw new RuntimeException(error.get("type").asText() + ": " + message);
        }
        return reply;
    }

    /** Request rows; {@link #answer} must be called after all of them have been read. */
    ArrowStreamReader rows(ObjectNode request, RootAllocator allocator) {
        send(request);
        return new ArrowStreamReader(in, allocator);
    }
}
