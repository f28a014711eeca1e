#!/usr/bin/env python3
"""Writes and reads OFRecord files without any of Millrace's code, to judge it by.

    ofrecord_independent.py struct|protobuf write|read FOLDER LIST

`struct` codes the wire format by hand, in every layout the format allows; `protobuf` uses google.protobuf with a
descriptor made here. `write` makes the parts, `read` checks those in FOLDER; both put what the records hold into
LIST: for each record, in order, its label and size (little-endian, 4 bytes each) and the picture's bytes.
Exits with 77 where google.protobuf is missing.
"""
import os
import struct
import sys

# Lengths of 1, 2, 3 and 4 bytes as varints, and their edges.
SIZES = [1, 2, 100, 127, 128, 300, 5000, 16383, 16384, 70000, 2097151, 2097152]


def picture(number):
    size = SIZES[number % len(SIZES)]
    block = bytes((number * 131 + i * i * 7 + (i >> 3)) & 255 for i in range(min(size, 4099)))
    return (block * (size // len(block) + 1))[:size]


def label(number):
    return [0, 1, 127, 128, 999, 16384, 2147483647][number % 7]


# --- by hand ---------------------------------------------------------------------------------------------------


def varint(value, padding=0):
    """`padding`: bytes more than needed, which readers have to accept."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    for _ in range(padding):
        out[-1] |= 128
        out.append(0)
    return bytes(out)


def field(number, content, padding=0):
    return varint(number << 3 | 2) + varint(len(content), padding) + content


def packed(values):
    return field(1, b"".join(varint(v) for v in values))


def unpacked(values):
    return b"".join(varint(1 << 3 | 0) + varint(v) for v in values)


def entry(key, feature, padding=0):
    return field(1, field(1, key.encode(), padding) + field(2, feature, padding), padding)


def image_feature(data, padding=0):
    return field(1, field(1, data, padding), padding)


EXTRAS = [
    entry("a/float", field(2, field(1, struct.pack("<3f", 1, 2, 3)))),
    entry("b/float one by one", field(2, b"".join(varint(1 << 3 | 5) + struct.pack("<f", v) for v in (1, 2)))),
    entry("c/double", field(3, field(1, struct.pack("<2d", 1, 2)))),
    entry("d/negative", field(4, packed([-1, -2147483648]))),
    entry("e/long", field(5, packed([-1, 1 << 62]))),
    entry("f/bytes", field(1, field(1, b"n01440764") + field(1, b"") + field(1, b"\xff\xfe"))),
    entry("g/no kind", b""),
    entry("h/empty list", field(4, b"")),
    entry("i/empty packed", field(5, field(1, b""))),
    field(1, field(1, b"j/no value")),
    field(1, field(2, field(4, packed([3])))),  # no key
    field(1, b""),
]

LAYOUTS = 10


def record_by_hand(number):
    data, kind = picture(number), label(number)
    plain = entry("class/label", field(4, packed([kind])))
    image = entry("encoded", image_feature(data))
    layout = number % LAYOUTS
    if layout == 0:
        return plain + image
    if layout == 1:
        return image + plain
    if layout == 2:
        return image + entry("class/label", field(4, unpacked([kind])))
    if layout == 3:
        return entry("class/label", field(5, packed([kind]))) + image
    if layout == 4:
        return image + entry("class/label", field(5, unpacked([kind])))
    if layout == 5:  # other keys, in no order
        order = EXTRAS[::2] + [image] + EXTRAS[1::2] + [plain]
        turn = number // LAYOUTS % len(order)
        return b"".join(order[turn:] + order[:turn])
    if layout == 6:  # varints longer than needed; value before key
        swapped = field(1, field(2, field(4, packed([kind]), 1), 2) + field(1, b"class/label"), 1)
        return entry("encoded", image_feature(data, 1), 1) + swapped
    if layout == 7:  # fields nobody knows: a varint, 8 and 4 bytes, a length, a group
        unknown = (
            varint(15 << 3) + varint(77) + varint(16 << 3 | 1) + b"12345678" + varint(17 << 3 | 5) + b"1234"
            + field(18, b"unknown") + varint(19 << 3 | 3) + varint(1 << 3) + varint(5) + varint(19 << 3 | 4)
        )
        return unknown + entry("encoded", unknown + image_feature(data) + unknown) + plain + unknown
    if layout == 8:  # of a key given twice the last counts, of two kinds too
        twice = field(1, field(1, b"not this")) + field(4, packed([kind]))
        return entry("encoded", image_feature(b"old")) + entry("class/label", twice) + image
    # An entry's value in two pieces is put together.
    pieces = field(1, field(1, b"class/label") + field(2, field(4, b"")) + field(2, field(4, packed([kind]))))
    return pieces + image


def read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        assert tag & 7 == 2, "only fields with a length are expected, not wire type %d" % (tag & 7)
        size, at = read_varint(data, at)
        assert at + size <= len(data), "a field reaches beyond its message"
        yield tag >> 3, data[at : at + size]
        at += size


def parse_by_hand(data):
    """Accepts nothing but the layout that is promised: keys in order, one value each."""
    found = {}
    for number, content in fields(data):
        assert number == 1
        (key_number, key), (value_number, feature) = fields(content)
        assert (key_number, value_number) == (1, 2)
        ((kind, values),) = fields(feature)
        ((value_field, value),) = fields(values)
        assert value_field == 1
        found[key.decode()] = (kind, value)
    assert list(found) == ["class/label", "encoded"], list(found)
    assert found["class/label"][0] == 4 and found["encoded"][0] == 1
    kind, end = read_varint(found["class/label"][1], 0)
    assert end == len(found["class/label"][1])
    return kind, found["encoded"][1]


# --- with google.protobuf --------------------------------------------------------------------------------------


def record_class():
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        sys.exit(77)
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="independent.proto", package="independent", syntax="proto2")
    lists = [("BytesList", kinds.TYPE_BYTES), ("FloatList", kinds.TYPE_FLOAT), ("DoubleList", kinds.TYPE_DOUBLE),
             ("Int32List", kinds.TYPE_INT32), ("Int64List", kinds.TYPE_INT64)]
    for name, kind in lists:
        value = file.message_type.add(name=name).field.add(
            name="value", number=1, type=kind, label=kinds.LABEL_REPEATED)
        if kind != kinds.TYPE_BYTES:
            value.options.packed = True
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, _) in enumerate(lists, 1):
        feature.field.add(name=name[:-4].lower() + "_list", number=number, type=kinds.TYPE_MESSAGE,
                          label=kinds.LABEL_OPTIONAL, type_name=".independent." + name, oneof_index=0)
    record = file.message_type.add(name="OFRecord")
    pair = record.nested_type.add(name="FeatureEntry")
    pair.options.map_entry = True
    pair.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    pair.field.add(name="value", number=2, type=kinds.TYPE_MESSAGE, label=kinds.LABEL_OPTIONAL,
                   type_name=".independent.Feature")
    record.field.add(name="feature", number=1, type=kinds.TYPE_MESSAGE, label=kinds.LABEL_REPEATED,
                     type_name=".independent.OFRecord.FeatureEntry")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    described = pool.FindMessageTypeByName("independent.OFRecord")
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(described)
    return message_factory.MessageFactory(pool).GetPrototype(described)


def record_by_protobuf(number, make):
    record = make()
    if number % 3 == 1:
        record.feature["a/text"].bytes_list.value.extend([b"tench", b"Tinca tinca"])
        record.feature["z/box"].float_list.value.extend([0.25, 0.5])
        record.feature["m/ids"].int64_list.value.extend([-1, 1 << 40])
        record.feature["n/scores"].double_list.value.extend([0.125])
    if number % 4 == 3:
        record.feature["class/label"].int64_list.value.append(label(number))
    else:
        record.feature["class/label"].int32_list.value.append(label(number))
    record.feature["encoded"].bytes_list.value.append(picture(number))
    return record.SerializeToString()


def parse_by_protobuf(data, make):
    record = make()
    record.ParseFromString(data)
    assert sorted(record.feature) == ["class/label", "encoded"], sorted(record.feature)
    (kind,) = record.feature["class/label"].int32_list.value
    (data,) = record.feature["encoded"].bytes_list.value
    return kind, data


# ---------------------------------------------------------------------------------------------------------------


def listed(kind, data):
    return struct.pack("<II", kind, len(data)) + data


def write(folder, encode):
    contents = bytearray()
    number = 0
    # Parts of unequal lengths, an empty one, and names whose order is not that of their numbers.
    for part, records in enumerate([7, 0, 31, 1, 12, 3, 2, 0, 9, 5, 40]):
        with open(os.path.join(folder, "part-%d" % part), "wb") as file:
            for _ in range(records):
                data = encode(number)
                file.write(struct.pack("<q", len(data)) + data)
                contents += listed(label(number), picture(number))
                number += 1
    return contents


def read(folder, parse):
    contents = bytearray()
    for name in sorted(name for name in os.listdir(folder) if name.startswith("part-")):
        with open(os.path.join(folder, name), "rb") as file:
            while header := file.read(8):
                (size,) = struct.unpack("<q", header)
                data = file.read(size)
                assert len(data) == size, name
                contents += listed(*parse(data))
    return contents


def main():
    way, action, folder, list_path = sys.argv[1:]
    if way == "protobuf":
        make = record_class()
        encode = lambda number: record_by_protobuf(number, make)
        parse = lambda data: parse_by_protobuf(data, make)
    else:
        encode, parse = record_by_hand, parse_by_hand
    contents = write(folder, encode) if action == "write" else read(folder, parse)
    with open(list_path, "wb") as file:
        file.write(contents)


main()
