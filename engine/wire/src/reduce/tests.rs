use rackweave_core::HostId;

use super::*;
use crate::Malformed;

fn header(body: Body) -> Header {
    Header { job: 0x0102, attempt: 3, worker: 5, token: Id64::new(0x1112_1314_1516_1718), body }
}

fn bytes(body: Body) -> Vec<u8> {
    let header = header(body);
    let mut bytes = Vec::new();
    encode(&header, &mut bytes);
    bytes.resize(bytes.len() + header.payload_len() as usize, 0x77);
    bytes
}

#[test]
fn the_layout_of_data_is_that_of_the_documentation() {
    let data = bytes(Body::Data(Pairs { seq: 0x0a0b_0c0d, epoch: 0x0e0f, count: 2 }));
    let front = [
        0xa6, 1, 1, 2, 0, 3, 5, 2, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x0a, 0x0b,
        0x0c, 0x0d, 0x0e, 0x0f, 0, 0,
    ];
    assert_eq!(data[..24], front);
    assert_eq!(data.len(), 24 + 2 * PAIR_BYTES);
}

#[test]
fn the_layout_of_a_chunk_is_that_of_the_documentation() {
    let number = Id64::new(0x2122_2324_2526_2728);
    let chunk = Chunk { number, count: 3, exponent: 0x81, format: Format::BlockFloat, tag: 0 };
    let without = bytes(Body::Chunk(chunk));
    let front = [
        0xa6, 23, 1, 2, 0, 3, 5, 0, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22,
        0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0, 3, 0x81, 1,
    ];
    assert_eq!(without[..28], front);
    assert_eq!(without.len(), 28 + 3 * 4);
    let mut with = bytes(Body::Chunk(Chunk { tag: 0x3132_3334, ..chunk }));
    assert_eq!((with[7], &with[16..28]), (1, &front[16..]));
    assert_eq!((&with[28..32], with.len()), (&[0x31, 0x32, 0x33, 0x34][..], 32 + 3 * 4));
    with[28..32].fill(0);
    let error = decode(&with).unwrap_err();
    assert!(matches!(error, Malformed::ReduceField { what: "tag", value: 0 }), "{error}");
}

const OFFER: Offer = Offer {
    step: 0x0102,
    length: 0x0304,
    format: Format::BlockFloat,
    label: 0x0506,
    is_last: true,
};

#[test]
fn the_layout_of_an_offer_is_that_of_the_documentation() {
    let (version, low) = (0x4142_4344, Id64::new(9));
    let progress = Body::VectorProgress { version, low, is_known: true, has_offer: true };
    let message = bytes(progress);
    let expected = [3, 0x41, 0x42, 0x43, 0x44, 0, 0, 0, 0, 0, 0, 0, 9];
    assert_eq!((message[7], &message[16..28]), (expected[0], &expected[1..]));
    assert_eq!(message.len(), 28 + OFFER_BYTES as usize);
    assert_eq!(decode(&message).unwrap().header.body, progress);
    let mut bytes = Vec::new();
    OFFER.encode(&mut bytes);
    let expected = [0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 3, 4, 0, 0, 5, 6, 1, 1, 0, 0];
    assert_eq!((bytes.as_slice(), bytes.len()), (&expected[..], OFFER_BYTES as usize));
    assert_eq!(Offer::decode(&bytes), Ok(OFFER));
    assert!(Offer::decode(&bytes[..19]).is_err());
}

/// The tag is a part of the format: workers of different builds compute the same.
#[test]
fn the_tag_follows_from_number_length_type_and_purpose() {
    let others = [
        Offer { step: 0x0103, ..OFFER },
        Offer { length: 0x0305, ..OFFER },
        Offer { format: Format::I64, ..OFFER },
        Offer { label: 0x0507, ..OFFER },
    ];
    assert!(others.iter().all(|other| other.tag() != OFFER.tag()));
    assert_eq!(Offer { is_last: false, ..OFFER }.tag(), OFFER.tag());
    assert_eq!(OFFER.tag(), 0x8d5c_53cd);
}

#[test]
fn the_layout_of_a_plan_is_that_of_the_documentation() {
    let plan = Plan {
        aggregator: HostId(0x8000_0001),
        first: 7,
        length: 0x0102_0304_0506,
        steps: 9,
        pool: 64,
        elements: 128,
        format: Format::I64,
        workers: 8,
    };
    // As many elements need more than 2^31 blocks of 128.
    assert!(Plan::decode(&plan.encode()).is_err());
    let plan = Plan { length: 0x0102_0304, ..plan };
    let bytes = plan.encode();
    let expected = [
        0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 9, 0, 64, 0, 128,
        0, 8, 0, 0,
    ];
    assert_eq!((bytes.as_slice(), bytes.len()), (&expected[..], PLAN_BYTES as usize));
    assert_eq!(Plan::decode(&bytes), Ok(plan));
    for (changed, field) in [
        (Plan { pool: 0, ..plan }, "pool"),
        (Plan { elements: 176, ..plan }, "number of elements"),
        (Plan { workers: 65, ..plan }, "number of workers"),
        (Plan { steps: 0, ..plan }, "number of steps"),
        (Plan { length: 0, ..plan }, "number of steps"),
    ] {
        let error = Plan::decode(&changed.encode()).unwrap_err();
        assert!(matches!(error, Malformed::ReduceField { what, .. } if what == field), "{error}");
    }
    assert!(Plan::decode(&bytes[..31]).is_err());
    let open = Plan { length: 0, steps: 0, ..plan };
    assert_eq!(Plan::decode(&open.encode()), Ok(open));
}

#[test]
fn a_job_that_has_failed_says_why() {
    let difference = Difference {
        workers: 5 << 60,
        found: OFFER,
        expected: Offer::nothing(3, false),
        has_majority: true,
    };
    let blames = [
        None,
        Some(Blame::Gone { worker: 0, has_left: false, waited: 0 }),
        Some(Blame::Gone { worker: 63, has_left: true, waited: 0b101 }),
        Some(Blame::NotJoined(u64::MAX - 1)),
        Some(Blame::Differ(difference)),
    ];
    for blame in blames {
        let payload = Blame::encode(blame.as_ref());
        let body = Body::VectorState { version: 1, instance: 2, phase: Phase::Failed };
        assert_eq!(header(body).payload_len() as usize, payload.len());
        assert_eq!(Blame::decode(&payload), blame);
        for len in 0..payload.len() {
            let _ = Blame::decode(&payload[..len]);
        }
    }
    assert_eq!(Blame::decode(&[9; 52]), None);
    assert_eq!(Blame::decode(&[&[1, 64][..], &[0; 50]].concat()), None);
}

#[test]
fn full_packets_fit_an_ethernet_frame() {
    let full = [
        Body::Data(Pairs { seq: 0, epoch: 0, count: MAX_PAIRS }),
        Body::Values { epoch: 0, first: 0, sums: FETCH_SLOTS as u8 },
        Body::Long { seq: 0, epoch: 0, offset: 0, len: LONG_BYTES },
        Body::Join { instance: 0, cookie: Id64::new(0), digest: Id64::new(0) },
        Body::Chunk(Chunk {
            number: Id64::new(0),
            count: Format::I64.max_elements(),
            exponent: 0,
            format: Format::I64,
            tag: 1,
        }),
        Body::ChunkSum(Chunk {
            number: Id64::new(0),
            count: Format::BlockFloat.max_elements(),
            exponent: 0,
            format: Format::BlockFloat,
            tag: 1,
        }),
    ];
    // The overlay of the user-space switch adds 40 bytes.
    for body in full {
        assert!(header(body).l3_bytes() <= 1500 - 40, "{body:?}");
    }
}

#[test]
fn impossible_fields_are_refused() {
    let state = State {
        version: 1,
        instance: 2,
        aggregator: HostId(9),
        epochs: 4,
        drained: 4,
        window: 256,
        copies: 2,
        phase: Phase::Run,
        operator: Operator::Max,
    };
    let open = Open {
        cookie: Id64::new(1),
        slots: 100,
        first_epoch: 0,
        window: 256,
        copies: 2,
        operator: Operator::Sum,
        workers: 3,
        rule: Rule::Exact,
    };
    assert_eq!(decode(&bytes(Body::State(state))).unwrap().header.body, Body::State(state));
    let mut other = bytes(Body::State(state));
    other[7] = 4;
    let error = decode(&other).unwrap_err();
    assert!(matches!(error, Malformed::ReduceField { what: "operator", value: 4 }), "{error}");
    assert!(decode(&bytes(Body::Open(open))).is_ok());
    let refused = [
        (Body::Data(Pairs { seq: 1, epoch: 1, count: 0 }), "number of pairs"),
        (Body::Data(Pairs { seq: 1, epoch: 1, count: 65 }), "number of pairs"),
        (Body::Long { seq: 1, epoch: 1, offset: 0, len: 0 }, "length"),
        (Body::Long { seq: 1, epoch: 1, offset: u32::MAX, len: 1 }, "length"),
        (Body::Values { epoch: 1, first: 1, sums: 53 }, "number of sums"),
        (Body::State(State { drained: 5, ..state }), "drained epoch"),
        (Body::State(State { copies: 3, ..state }), "number of copies"),
        (Body::State(State { window: 0, ..state }), "window"),
        (Body::Open(Open { workers: 65, ..open }), "number of workers"),
        (Body::Open(Open { copies: 0, ..open }), "number of copies"),
        (Body::Open(Open { window: 1025, ..open }), "window"),
    ];
    for (body, field) in refused {
        let error = decode(&bytes(body)).unwrap_err();
        assert!(matches!(error, Malformed::ReduceField { what, .. } if what == field), "{error}");
    }
}

#[test]
fn a_truncated_message_is_refused_at_every_length() {
    let data = bytes(Body::Data(Pairs { seq: 1, epoch: 1, count: 3 }));
    for len in 0..data.len() {
        assert!(matches!(decode(&data[..len]), Err(Malformed::Truncated { .. })), "{len}");
    }
    assert_eq!(decode(&data).unwrap().payload, 24..data.len());
}
