/* Makes groups of every kind at a broker: java Groups.java ADDRESS PROTOCOL

   Prints READY when they are there, with live members, and ends when its input ends.
   With "join" for the protocol and the name of a group it joins that group, prints the
   first offset that it is given of each partition, commits, and leaves. */

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;

public class Groups {
    private static volatile boolean ending = false;
    private static String address;

    private static Properties properties(String... more) {
        Properties result = new Properties();
        result.put("bootstrap.servers", address);
        for (int at = 0; at < more.length; at += 2) {
            result.put(more[at], more[at + 1]);
        }
        return result;
    }

    private static KafkaProducer<byte[], byte[]> producer(String... more) {
        Properties all = properties(more);
        String serializer = "org.apache.kafka.common.serialization.ByteArraySerializer";
        all.put("key.serializer", serializer);
        all.put("value.serializer", serializer);
        return new KafkaProducer<>(all);
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String group, String... more) {
        Properties all = properties(more);
        String deserializer = "org.apache.kafka.common.serialization.ByteArrayDeserializer";
        all.put("key.deserializer", deserializer);
        all.put("value.deserializer", deserializer);
        all.put("group.id", group);
        all.put("enable.auto.commit", "false");
        all.put("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(all);
    }

    private static KafkaConsumer<byte[], byte[]> newer(String group, String... more) {
        String[] all = Arrays.copyOf(more, more.length + 2);
        all[more.length] = "group.protocol";
        all[more.length + 1] = "consumer";
        return consumer(group, all);
    }

    private static void commit(String group, String topic, int partition, long offset, String metadata) {
        TopicPartition place = new TopicPartition(topic, partition);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(group)) {
            consumer.assign(List.of(place));
            consumer.commitSync(Map.of(place, new OffsetAndMetadata(offset, Optional.of(0), metadata)));
        }
    }

    private static void fill(Admin admin) throws Exception {
        admin.createTopics(List.of(
            new NewTopic("alpha", 3, (short) 1), new NewTopic("beta", 2, (short) 1))).all().get();
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            for (int partition = 0; partition < 3; partition++) {
                for (int number = 0; number < 10 * (partition + 1); number++) {
                    producer.send(new ProducerRecord<>("alpha", partition, null, new byte[7]));
                }
            }
            for (int number = 0; number < 5; number++) {
                producer.send(new ProducerRecord<>("beta", 0, null, new byte[7]));
            }
        }
    }

    private static void transactions() throws Exception {
        TopicPartition place = new TopicPartition("alpha", 0);
        KafkaConsumer<byte[], byte[]> member = consumer("in-transactions");
        KafkaProducer<byte[], byte[]> producer = producer("transactional.id", "t1");
        producer.initTransactions();
        for (long offset : new long[] {3, 6, 8}) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>("beta", 1, null, new byte[7])).get();
            producer.sendOffsetsToTransaction(
                Map.of(place, new OffsetAndMetadata(offset, "at " + offset)), member.groupMetadata());
            if (offset == 8) {
                producer.abortTransaction();
            } else {
                producer.commitTransaction();
            }
        }
        // One that is never ended here.
        KafkaProducer<byte[], byte[]> other = producer("transactional.id", "t2", "transaction.timeout.ms", "600000");
        other.initTransactions();
        other.beginTransaction();
        other.sendOffsetsToTransaction(
            Map.of(new TopicPartition("alpha", 1), new OffsetAndMetadata(9)),
            member.groupMetadata());
        member.close();
    }

    private static void waitFor(CountDownLatch latch) throws Exception {
        if (!latch.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("a group did not get its partitions");
        }
    }

    private static List<Thread> members(String group, String protocol) throws Exception {
        CountDownLatch assigned = new CountDownLatch(2);
        Thread one = member(group, assigned, protocol, "client.id", group + "-a", "group.instance.id", group + "-static");
        Thread two = member(group, assigned, protocol, "client.id", group + "-b");
        waitFor(assigned);
        return List.of(one, two);
    }

    /** A member that has some of the partitions, not all, commits for one of them, and stays. */
    private static Thread member(String group, CountDownLatch assigned, String protocol, String... more) {
        Thread thread = new Thread(() -> {
            try (KafkaConsumer<byte[], byte[]> consumer = protocol.equals("consumer") ? newer(group, more) : consumer(group, more)) {
                consumer.subscribe(List.of("alpha"));
                boolean isDone = false;
                while (!ending) {
                    consumer.poll(Duration.ofMillis(100));
                    Set<TopicPartition> now = new HashSet<>(consumer.assignment());
                    consumer.pause(now);
                    if (!isDone && (now.size() == 1 || now.size() == 2)) {
                        try {
                            consumer.commitSync(Map.of(now.iterator().next(), new OffsetAndMetadata(now.size(), "by " + group)));
                            isDone = true;
                            assigned.countDown();
                        } catch (CommitFailedException | RebalanceInProgressException error) {
                            // The group moved on meanwhile: the next poll tells the new epoch.
                        }
                    }
                }
            } catch (RuntimeException error) {
                error.printStackTrace();
                Runtime.getRuntime().halt(3);
            }
        });
        thread.start();
        return thread;
    }

    /** A share group, by reflection: older clients have none. */
    private static void share() throws Exception {
        Properties all = properties("group.id", "shared");
        String deserializer = "org.apache.kafka.common.serialization.ByteArrayDeserializer";
        all.put("key.deserializer", deserializer);
        all.put("value.deserializer", deserializer);
        Class<?> kind = Class.forName("org.apache.kafka.clients.consumer.KafkaShareConsumer");
        Object consumer = kind.getConstructor(Properties.class).newInstance(all);
        kind.getMethod("subscribe", Collection.class).invoke(consumer, List.of("beta"));
        for (int turn = 0; turn < 20; turn++) {
            kind.getMethod("poll", Duration.class).invoke(consumer, Duration.ofMillis(100));
        }
        kind.getMethod("close").invoke(consumer);
    }

    /** Reads where a group has stopped. */
    private static void join(String group) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(group)) {
            consumer.subscribe(List.of("alpha", "beta"));
            Set<TopicPartition> seen = new HashSet<>();
            while (seen.size() < 4) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    if (seen.add(new TopicPartition(record.topic(), record.partition()))) {
                        System.out.println("FIRST " + record.topic() + " " + record.partition() + " " + record.offset());
                    }
                }
            }
            consumer.commitSync();
        }
    }

    public static void main(String[] arguments) throws Exception {
        address = arguments[0];
        if (arguments[1].equals("join")) {
            join(arguments[2]);
            return;
        }
        boolean isNew = arguments[1].equals("consumer");
        try (Admin admin = Admin.create(properties("request.timeout.ms", "60000", "default.api.timeout.ms", "90000"))) {
            fill(admin);
            commit("simple", "alpha", 0, 4, "m\u00fcll");
            commit("simple", "alpha", 0, 5, "m\u00fcll");
            commit("simple", "beta", 0, 7, "");
            commit("removed", "alpha", 0, 1, "");
            admin.deleteConsumerGroups(List.of("removed")).all().get();
            commit("partly", "alpha", 0, 2, "");
            commit("partly", "alpha", 1, 3, "");
            admin.deleteConsumerGroupOffsets("partly", Set.of(new TopicPartition("alpha", 0))).all().get();
            transactions();
            List<Thread> threads = new ArrayList<>(members("live", "classic"));
            if (isNew) {
                threads.addAll(members("newer", "consumer"));
                share();
            }
            System.out.println("READY");
            while (System.in.read() >= 0) {
            }
            ending = true;
            for (Thread thread : threads) {
                thread.join();
            }
            System.out.println("ENDED");
        }
        // Not an end of the open transaction, which closing its producer would be.
        Runtime.getRuntime().halt(0);
    }
}
