//! Published size distributions, each given by the rule that generates its points.
//!
//! W1 to W5 are those of the Homa papers: Montazeri, Li, Alizadeh, Ousterhout, "Homa: A Receiver-Driven Low-Latency
//! Transport Protocol Using Network Priorities", SIGCOMM 2018, figure 1, and Ousterhout, "A Linux Kernel Implementation
//! of the Homa Transport Protocol", USENIX ATC 2021. Both draw from a few hundred points. The points follow rules, so
//! that a few dozen numbers reproduce all of them.

use core::ops::RangeInclusive;

use crate::sizes::{Interpolation, Piece, pieces_of};

/// A published distribution and its origin.
pub(crate) struct Published {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    pub(crate) source: &'static str,
    pub(crate) curve: Curve,
}

/// The rule that generates a distribution's points.
pub(crate) enum Curve {
    /// The model of [`memcached`].
    Memcached,
    /// Rows (size, points, cdf): from row to row `points` equally probable sizes, the last being the
    /// row's, with equally spaced reciprocals.
    Harmonic(&'static [(u64, u32, f64)]),
    /// Rows (size, cdf) above a first size: from row to row ten equally probable sizes in equal ratios.
    Geometric(u64, &'static [(u64, f64)]),
    /// Points on a line through packet counts.
    Packets(&'static [Packets]),
    /// A CDF that is linear between (packets of 1460 bytes, cdf).
    Linear(&'static [(u64, f64)]),
    /// The same between (bytes, cdf).
    Bytes(&'static [(u64, f64)]),
}

/// A line from one (packets, cdf) to another, divided into equal steps and read at some of them.
pub(crate) struct Packets {
    from: (u32, f64),
    to: (u32, f64),
    steps: u32,
    read: RangeInclusive<u32>,
}

impl Packets {
    const fn every(from: (u32, f64), to: (u32, f64), steps: u32) -> Self {
        Self { from, to, steps, read: 1..=steps }
    }
}

/// The names as users write them.
pub(crate) const NAMES: [&str; 10] =
    ["W1", "W2", "W3", "W4", "W5", "websearch", "datamining", "IMC10", "websearchHPCC", "FBHadoop"];

pub(crate) static PUBLISHED: [Published; 10] = [
    Published {
        name: NAMES[0],
        description: "Facebook's memcached servers (ETC)",
        source: "Atikoglu et al., Workload Analysis of a Large-Scale Key-Value Store, SIGMETRICS \
                 2012; as used in Homa, SIGCOMM 2018",
        curve: Curve::Memcached,
    },
    Published {
        name: NAMES[1],
        description: "a search application at Google",
        source: "Google, as used in Homa, SIGCOMM 2018",
        curve: Curve::Harmonic(&W2),
    },
    Published {
        name: NAMES[2],
        description: "all applications in a data center of Google",
        source: "Google, as used in Homa, SIGCOMM 2018",
        curve: Curve::Harmonic(&W3),
    },
    Published {
        name: NAMES[3],
        description: "a Hadoop cluster at Facebook",
        source: "Roy et al., Inside the Social Network's (Datacenter) Network, SIGCOMM 2015; as \
                 used in Homa, SIGCOMM 2018",
        curve: Curve::Geometric(50, &W4),
    },
    Published {
        name: NAMES[4],
        description: "web search, in DCTCP's paper",
        source: "Alizadeh et al., Data Center TCP (DCTCP), SIGCOMM 2010; as used in Homa, SIGCOMM \
                 2018",
        curve: Curve::Packets(&W5),
    },
    Published {
        name: NAMES[5],
        description: "web search, as pFabric and pHost draw it",
        source: "Alizadeh et al., Data Center TCP (DCTCP), SIGCOMM 2010; as used in pFabric, \
                 SIGCOMM 2013, and pHost, CoNEXT 2015",
        curve: Curve::Linear(&WEB_SEARCH),
    },
    Published {
        name: NAMES[6],
        description: "data mining, as pFabric and pHost draw it",
        source: "Greenberg et al., VL2, SIGCOMM 2009; as used in pFabric, SIGCOMM 2013, and pHost, \
                 CoNEXT 2015",
        curve: Curve::Linear(&DATA_MINING),
    },
    Published {
        name: NAMES[7],
        description: "data centers of universities and enterprises, as dcPIM draws it",
        source: "Benson, Akella, Maltz, Network Traffic Characteristics of Data Centers in the \
                 Wild, IMC 2010; as used in dcPIM, SIGCOMM 2022",
        curve: Curve::Linear(&IMC10),
    },
    Published {
        name: NAMES[8],
        description: "web search, as HPCC draws it",
        source: "Alizadeh et al., Data Center TCP (DCTCP), SIGCOMM 2010; as used in HPCC, SIGCOMM \
                 2019 (WebSearch_distribution.txt)",
        curve: Curve::Bytes(&WEB_SEARCH_HPCC),
    },
    Published {
        name: NAMES[9],
        description: "Facebook's Hadoop clusters, as HPCC draws them",
        source: "Roy et al., Inside the Social Network's (Datacenter) Network, SIGCOMM 2015; as \
                 used in HPCC, SIGCOMM 2019 (FbHdp_distribution.txt)",
        curve: Curve::Bytes(&FB_HADOOP),
    },
];

/// W2, in which each octave has ten points.
static W2: [(u64, u32, f64); 17] = [
    (8, 1, 0.170107628),
    (32, 1, 0.189008475),
    (64, 10, 0.326435928),
    (128, 10, 0.341703174),
    (256, 10, 0.463839541),
    (512, 10, 0.91040062),
    (1024, 10, 0.958110137),
    (2048, 10, 0.981010713),
    (4096, 10, 0.995323562),
    (8192, 10, 0.998424683),
    (16_384, 10, 0.998901778),
    (32_768, 10, 0.999140325),
    (65_536, 10, 0.999349054),
    (131_072, 10, 0.999870877),
    (262_144, 10, 0.999975242),
    (524_288, 10, 0.999982696),
    (3_529_904, 10, 1.0),
];

/// W3, in which each octave has about 1.3 times the points of the one below.
static W3: [(u64, u32, f64); 17] = [
    (8, 1, 0.064882623),
    (32, 1, 0.097323934),
    (64, 5, 0.155270737),
    (128, 6, 0.351573142),
    (256, 8, 0.497900763),
    (512, 11, 0.78492125),
    (1024, 14, 0.863199568),
    (2048, 18, 0.908861924),
    (4096, 24, 0.934954649),
    (8192, 31, 0.964309064),
    (16_384, 41, 0.984694041),
    (32_768, 53, 0.990401835),
    (65_536, 69, 0.993255726),
    (131_072, 90, 0.997128873),
    (262_144, 118, 0.998453103),
    (524_288, 153, 0.99949823),
    (15_158_197, 199, 1.0),
];

static W4: [(u64, f64); 46] = [
    (92, 0.0074),
    (217, 0.0149),
    (271, 0.0409),
    (300, 0.052),
    (326, 0.1375),
    (376, 0.2026),
    (425, 0.223),
    (480, 0.2639),
    (600, 0.4591),
    (679, 0.5167),
    (737, 0.552),
    (800, 0.5762),
    (885, 0.5912),
    (1042, 0.6097),
    (1277, 0.6282),
    (1413, 0.6394),
    (1534, 0.6468),
    (1664, 0.6673),
    (2214, 0.6747),
    (3396, 0.684),
    (5210, 0.6933),
    (7830, 0.7082),
    (31_946, 0.7212),
    (36_844, 0.7305),
    (39_973, 0.7398),
    (44_260, 0.7584),
    (47_050, 0.7788),
    (51_046, 0.816),
    (62_583, 0.8234),
    (70_722, 0.8327),
    (75_180, 0.842),
    (81_565, 0.8717),
    (102_058, 0.8885),
    (115_331, 0.8978),
    (133_013, 0.907),
    (156_563, 0.9164),
    (184_284, 0.9257),
    (212_546, 0.9349),
    (240_177, 0.9442),
    (288_520, 0.9535),
    (470_507, 0.9628),
    (736_642, 0.9684),
    (940_700, 0.9721),
    (1_769_244, 0.9814),
    (2_169_118, 0.987),
    (10_000_000, 1.0),
];

/// W5: the first 248 packet counts individually, then in steps of 2.5 thousandths of the messages.
///
/// Above a cdf of 0.9 a new line begins at 6667 packets. In the DCTCP table the cdf there
/// is 0.97, a difference that makes W5's mean 1.5 times [`WEB_SEARCH`]'s.
static W5: [Packets; 11] = [
    Packets::every((0, 0.0), (6, 0.15), 6),
    Packets::every((6, 0.15), (13, 0.2), 7),
    Packets::every((13, 0.2), (19, 0.3), 6),
    Packets::every((19, 0.3), (33, 0.4), 14),
    Packets::every((33, 0.4), (53, 0.53), 20),
    Packets::every((53, 0.53), (133, 0.6), 80),
    Packets { from: (133, 0.6), to: (667, 0.7), steps: 534, read: 1..=115 },
    Packets { from: (133, 0.6), to: (667, 0.7), steps: 40, read: 9..=40 },
    Packets::every((667, 0.7), (1333, 0.8), 40),
    Packets::every((1333, 0.8), (3333, 0.9), 40),
    Packets::every((6667, 0.9), (20_000, 1.0), 40),
];

/// The first two points have the same size, which is that of all the smallest messages.
static WEB_SEARCH: [(u64, f64); 12] = [
    (6, 0.0),
    (6, 0.15),
    (13, 0.2),
    (19, 0.3),
    (33, 0.4),
    (53, 0.53),
    (133, 0.6),
    (667, 0.7),
    (1333, 0.8),
    (3333, 0.9),
    (6667, 0.97),
    (20_000, 1.0),
];

static DATA_MINING: [(u64, f64); 9] = [
    (1, 0.0),
    (1, 0.5),
    (2, 0.6),
    (3, 0.7),
    (7, 0.8),
    (267, 0.9),
    (2107, 0.95),
    (66_667, 0.99),
    (666_667, 1.0),
];

/// The first two points have the same size, as in [`WEB_SEARCH`].
static IMC10: [(u64, f64); 12] = [
    (1, 0.0),
    (1, 0.5),
    (2, 0.6),
    (3, 0.7),
    (5, 0.75),
    (7, 0.8),
    (40, 0.8125),
    (72, 0.825),
    (137, 0.85),
    (267, 0.9),
    (1187, 0.95),
    (2107, 1.0),
];

/// The files begin with size 0.
static WEB_SEARCH_HPCC: [(u64, f64); 12] = [
    (1, 0.0),
    (10_000, 0.15),
    (20_000, 0.2),
    (30_000, 0.3),
    (50_000, 0.4),
    (80_000, 0.53),
    (200_000, 0.6),
    (1_000_000, 0.7),
    (2_000_000, 0.8),
    (5_000_000, 0.9),
    (10_000_000, 0.97),
    (30_000_000, 1.0),
];

static FB_HADOOP: [(u64, f64); 20] = [
    (1, 0.0),
    (100, 0.01),
    (200, 0.02),
    (300, 0.05),
    (350, 0.15),
    (400, 0.2),
    (500, 0.3),
    (600, 0.4),
    (700, 0.5),
    (1000, 0.6),
    (2000, 0.67),
    (7000, 0.7),
    (30_000, 0.72),
    (50_000, 0.82),
    (80_000, 0.87),
    (120_000, 0.9),
    (300_000, 0.95),
    (1_000_000, 0.975),
    (2_000_000, 0.99),
    (10_000_000, 1.0),
];

impl Curve {
    pub(crate) fn pieces(&self) -> Vec<Piece> {
        match self {
            Self::Memcached => memcached(),
            Self::Harmonic(rows) => harmonic(rows),
            Self::Geometric(first, rows) => geometric(*first, rows),
            Self::Packets(lines) => packets(lines),
            Self::Linear(rows) => {
                let points: Vec<_> = rows.iter().map(|&(n, cdf)| (n * 1460, cdf)).collect();
                pieces_of(&points, Interpolation::Linear)
            }
            Self::Bytes(rows) => pieces_of(rows, Interpolation::Linear),
        }
    }
}

/// The model of Atikoglu et al.: the smallest value sizes as counted, above them a generalised Pareto
/// distribution. Its points are 16 * 6250^(i / 299), rounded down; the largest has all the rest.
fn memcached() -> Vec<Piece> {
    const COUNTED: [(u64, f64); 8] = [
        (8, 0.31094),
        (9, 0.31931),
        (10, 0.32768),
        (11, 0.41757),
        (12, 0.41849),
        (13, 0.42175),
        (14, 0.44155),
        (15, 0.47),
    ];
    const SCALE: f64 = 214.476;
    const SHAPE: f64 = 0.348_238;
    const STEPS: u32 = 299;
    let mut points = COUNTED.to_vec();
    for i in 0..=STEPS {
        let size = 16.0 * libm::pow(6250.0, f64::from(i) / f64::from(STEPS));
        let above = libm::pow(1.0 + SHAPE * (size - 15.0) / SCALE, -1.0 / SHAPE);
        let cdf = if i == STEPS { 1.0 } else { 0.47 + 0.53 * (1.0 - above) };
        // The first size is 16 and the last 100,000, whatever the rounding of pow.
        let size = (size + 1e-6) as u64;
        // Adjacent points that round to the same size are one point.
        points.pop_if(|last| last.0 == size);
        points.push((size, cdf));
    }
    pieces_of(&points, Interpolation::Steps)
}

fn harmonic(rows: &[(u64, u32, f64)]) -> Vec<Piece> {
    let mut points = Vec::new();
    let (mut low, mut below) = (0, 0.0);
    for &(high, n, cdf) in rows {
        for i in 1..=u64::from(n) {
            // 1 / size = 1 / low + i / n * (1 / high - 1 / low), in whole numbers and rounded.
            let n = u64::from(n);
            let size = if i == n {
                high
            } else {
                let denominator = (n - i) * high + i * low;
                (2 * n * low * high + denominator) / (2 * denominator)
            };
            points.push((size, below + (cdf - below) * i as f64 / n as f64));
        }
        (low, below) = (high, cdf);
    }
    pieces_of(&points, Interpolation::Steps)
}

fn geometric(first: u64, rows: &[(u64, f64)]) -> Vec<Piece> {
    let mut points = Vec::new();
    let (mut low, mut below) = (first as f64, 0.0);
    for &(high, cdf) in rows {
        let ratio = high as f64 / low;
        for i in 1..=10 {
            let share = f64::from(i) / 10.0;
            let size = (low * libm::pow(ratio, share) + 0.5) as u64;
            points.push((size, below + (cdf - below) * share));
        }
        (low, below) = (high as f64, cdf);
    }
    pieces_of(&points, Interpolation::Steps)
}

fn packets(lines: &[Packets]) -> Vec<Piece> {
    let mut points = Vec::new();
    for &Packets { from, to, steps, ref read } in lines {
        let packets = to.0 - from.0;
        for step in read.clone() {
            let ahead = (packets * step).div_ceil(steps);
            let cdf = from.1 + (to.1 - from.1) * f64::from(ahead) / f64::from(packets);
            let count = u64::from(from.0 + ahead);
            // The first eight were made of smaller packets than the others.
            let size = count * if count <= 8 { 1430 } else { 1470 };
            points.push((size, cdf));
        }
    }
    pieces_of(&points, Interpolation::Steps)
}
