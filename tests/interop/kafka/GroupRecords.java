/* Prints records about groups as Kafka's own classes write them: a name and the bytes. */

import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.coordinator.group.generated.*;

public class GroupRecords {
    private static final Uuid TOPIC_ID = Uuid.fromString("AAECAwQFBgcICQoLDA0ODw");

    private static void show(String name, ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        System.out.println(name + " " + HexFormat.of().formatHex(bytes));
    }

    private static void show(String name, int version, ApiMessage message) {
        show(name, MessageUtil.toVersionPrefixedByteBuffer((short) version, message));
    }

    private static void offset(int version) {
        OffsetCommitValue value = new OffsetCommitValue()
            .setOffset(4711).setMetadata("m\u00fcll").setCommitTimestamp(1700000000123L);
        if (version == 1) value.setExpireTimestamp(1700000999999L);
        if (version >= 3) value.setLeaderEpoch(7);
        if (version >= 4) value.setTopicId(TOPIC_ID);
        show("offset" + version, version, value);
    }

    private static void group(int version) {
        GroupMetadataValue.MemberMetadata member = new GroupMetadataValue.MemberMetadata()
            .setMemberId("member-1").setClientId("client").setClientHost("/127.0.0.1")
            .setSessionTimeout(45000).setSubscription(new byte[] {1, 2, 3}).setAssignment(new byte[0]);
        if (version >= 1) member.setRebalanceTimeout(300000);
        if (version >= 3) member.setGroupInstanceId("static");
        GroupMetadataValue value = new GroupMetadataValue()
            .setProtocolType("consumer").setGeneration(3).setProtocol("range")
            .setLeader("member-1").setMembers(List.of(member));
        if (version >= 2) value.setCurrentStateTimestamp(1700000000456L);
        show("group" + version, version, value);
    }

    private static void consumer(int version) {
        List<TopicPartition> partitions = List.of(
            new TopicPartition("t", 0), new TopicPartition("t", 2), new TopicPartition("u", 1));
        Subscription subscription = new Subscription(
            List.of("t", "u"), ByteBuffer.wrap(new byte[] {9}), partitions, 5, Optional.of("rack"));
        show("subscription" + version, ConsumerProtocol.serializeSubscription(subscription, (short) version));
        show("assignment" + version,
            ConsumerProtocol.serializeAssignment(new Assignment(partitions), (short) version));
    }

    private static void newerProtocol() {
        show("epoch", 0, new ConsumerGroupMetadataValue().setEpoch(12));
        show("epoch-hash", 0, new ConsumerGroupMetadataValue().setEpoch(12).setMetadataHash(-5));
        show("target-epoch", 0, new ConsumerGroupTargetAssignmentMetadataValue().setAssignmentEpoch(13));
        show("target-epoch-time", 0, new ConsumerGroupTargetAssignmentMetadataValue()
            .setAssignmentEpoch(13).setAssignmentTimestamp(1700000000789L));
        ConsumerGroupMemberMetadataValue member = new ConsumerGroupMemberMetadataValue()
            .setInstanceId(null).setRackId("r").setClientId("c").setClientHost("/h")
            .setSubscribedTopicNames(List.of("t")).setSubscribedTopicRegex("x.*")
            .setRebalanceTimeoutMs(300000).setServerAssignor("uniform");
        show("member", 0, member);
        member.setClassicMemberMetadata(new ConsumerGroupMemberMetadataValue.ClassicMemberMetadata()
            .setSessionTimeoutMs(45000)
            .setSupportedProtocols(List.of(new ConsumerGroupMemberMetadataValue.ClassicProtocol()
                .setName("range").setMetadata(new byte[] {1}))));
        show("member-classic", 0, member);
        show("target-member", 0, new ConsumerGroupTargetAssignmentMemberValue().setTopicPartitions(List.of(
            new ConsumerGroupTargetAssignmentMemberValue.TopicPartition()
                .setTopicId(TOPIC_ID).setPartitions(List.of(0, 3)))));
        show("current", 0, new ConsumerGroupCurrentMemberAssignmentValue()
            .setMemberEpoch(4).setPreviousMemberEpoch(3).setState((byte) 1)
            .setAssignedPartitions(List.of(new ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions()
                .setTopicId(TOPIC_ID).setPartitions(List.of(0))))
            .setPartitionsPendingRevocation(List.of(
                new ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions()
                    .setTopicId(TOPIC_ID).setPartitions(List.of(3)))));
        show("current-epochs", 0, new ConsumerGroupCurrentMemberAssignmentValue()
            .setMemberEpoch(4).setPreviousMemberEpoch(3).setState((byte) 1)
            .setAssignedPartitions(List.of(new ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions()
                .setTopicId(TOPIC_ID).setPartitions(List.of(0, 3)).setAssignmentEpochs(List.of(4, 2)))));
        show("streams", 0, new StreamsGroupMetadataValue().setEpoch(2).setMetadataHash(7)
            .setStoredDescriptionTopologyEpoch(5).setFailedDescriptionTopologyEpoch(6));
    }

    private static void keys() {
        show("key-offset", 1, new OffsetCommitKey().setGroup("g").setTopic("t").setPartition(3));
        show("key-offset-old", 0, new LegacyOffsetCommitKey().setGroup("g").setTopic("t").setPartition(3));
        show("key-group", 2, new GroupMetadataKey().setGroup("gr\u00fcn"));
        show("key-member", 5, new ConsumerGroupMemberMetadataKey().setGroupId("g").setMemberId("m"));
        show("key-current", 8, new ConsumerGroupCurrentMemberAssignmentKey().setGroupId("g").setMemberId("m"));
        show("key-epoch", 3, new ConsumerGroupMetadataKey().setGroupId("g"));
        show("key-share", 11, new ShareGroupMetadataKey().setGroupId("g"));
    }

    public static void main(String[] arguments) {
        for (int version = 0; version <= 4; version++) {
            offset(version);
            group(version);
        }
        show("offset4-no-topic", 4, new OffsetCommitValue().setOffset(1).setMetadata("").setCommitTimestamp(2));
        show("group3-empty", 3, new GroupMetadataValue()
            .setProtocolType("").setGeneration(0).setProtocol(null).setLeader(null).setCurrentStateTimestamp(5));
        for (int version = 0; version <= 3; version++) {
            consumer(version);
        }
        newerProtocol();
        keys();
    }
}
