package logstore.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Map;

/** Requests to logstore's Python, and its answers. */
final class Json {
    static final ObjectMapper MAPPER = new ObjectMapper();

    private Json() {}

    /** A request for an operation; the caller adds the arguments. */
    static ObjectNode request(String operation) {
        return MAPPER.createObjectNode().put("do", operation);
    }

    static JsonNode parse(String text) {
        try {
            return MAPPER.readTree(text);
        } catch (JsonProcessingException error) {
            throw new RuntimeException("no JSON: " + text, error);
        }
    }

    static ObjectNode of(Map<String, String> map) {
        ObjectNode node = MAPPER.createObjectNode();
        map.forEach(node::put);
        return node;
    }
}
