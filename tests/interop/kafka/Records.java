/* Prints what Kafka's own consumer gets: java Records.java ADDRESS ISOLATION TOPIC...

   A line for each record, from the start of each partition to the end that it has at the
   call: topic, partition, offset, type and time of the timestamp, key, value, headers. */

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.StringJoiner;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;

public class Records {
    private static String hex(byte[] bytes) {
        return bytes == null ? "-" : "x" + HexFormat.of().formatHex(bytes);
    }

    private static String line(ConsumerRecord<byte[], byte[]> record) {
        StringJoiner headers = new StringJoiner(",");
        for (Header header : record.headers()) {
            byte[] name = header.key().getBytes(StandardCharsets.UTF_8);
            headers.add(hex(name) + "=" + hex(header.value()));
        }
        StringJoiner line = new StringJoiner("\t");
        line.add(record.topic()).add("" + record.partition()).add("" + record.offset());
        line.add("" + record.timestampType().id).add("" + record.timestamp());
        return line.add(hex(record.key())).add(hex(record.value())).add(headers.toString()).toString();
    }

    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("isolation.level", arguments[1]);
        settings.put("enable.auto.commit", "false");
        String deserializer = "org.apache.kafka.common.serialization.ByteArrayDeserializer";
        settings.put("key.deserializer", deserializer);
        settings.put("value.deserializer", deserializer);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (String topic : Arrays.asList(arguments).subList(2, arguments.length)) {
                for (PartitionInfo info : consumer.partitionsFor(topic)) {
                    partitions.add(new TopicPartition(topic, info.partition()));
                }
            }
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            while (ends.entrySet().stream().anyMatch(e -> consumer.position(e.getKey()) < e.getValue())) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    System.out.println(line(record));
                }
            }
        }
    }
}
