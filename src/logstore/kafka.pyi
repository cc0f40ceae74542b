from logstore.broker.fields import Field as Field
from logstore.broker.fields import Message as Message
from logstore.broker.fields import MessageError as MessageError
from logstore.broker.fields import Struct as Struct
from logstore.broker.groups import KafkaGroup as KafkaGroup
from logstore.broker.groups import KafkaGroups as KafkaGroups
from logstore.broker.groups import KafkaMember as KafkaMember
from logstore.broker.groups import kafka_groups as _kafka_groups
from logstore.broker.placement import java_hash as java_hash
from logstore.broker.releases import RELEASES as RELEASES
from logstore.broker.schemas import message as message
from logstore.broker.schemas import messages as messages
from logstore.group.exports import GroupExport as GroupExport
from logstore.group.exports import export_group as export_group
from logstore.maintenance.handover import HandoverFinding as HandoverFinding
from logstore.maintenance.handover import HandoverReport as HandoverReport
from logstore.maintenance.handover import check_handover as check_handover

groups = _kafka_groups

__all__: list[str]
