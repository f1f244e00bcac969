//! Properties of axes and of the data of charts.

use proptest::prelude::*;

use super::*;

fn chart(points: Vec<(f64, f64)>, scale: Scale, quantity: Quantity) -> Chart {
    let series = Series {
        label: "</script>&\u{ffff}".to_owned(),
        look: Look::nth(0),
        points,
        stroke: 2.0,
        step: false,
        marked: true,
        notes: Vec::new(),
    };
    let x = Axis::new("x", scale, quantity);
    let y = Axis::new("y", Scale::Linear, Quantity::Number);
    Chart { title: String::new(), x, y, series: vec![series], size: (380.0, 250.0), choice: None }
}

fn any_axis() -> impl Strategy<Value = (Scale, Quantity)> {
    let quantities = [Quantity::Number, Quantity::Bytes, Quantity::Micros, Quantity::Fraction];
    (
        prop_oneof![Just(Scale::Linear), Just(Scale::Log)],
        proptest::sample::select(quantities.to_vec()),
    )
}

#[test]
fn a_chart_survives_as_json() {
    let mut chart =
        chart(vec![(1.0, 2.5), (2.0, f64::NAN), (3.0, 1.0 / 3.0)], Scale::Log, Quantity::Micros);
    let json = serde_json::to_string(&chart).unwrap();
    let read: Chart = serde_json::from_str(&json).unwrap();
    assert!(read.series[0].points[1].1.is_nan(), "{json}");
    assert_eq!(read.render(Theme::Page), chart.render(Theme::Page));
    // Values have six digits.
    chart.series[0].points = vec![(1.0, 2.5), (3.0, 0.333_333)];
    let read: Chart = serde_json::from_str(&serde_json::to_string(&chart).unwrap()).unwrap();
    assert_eq!(read, chart);
}

proptest! {
    /// An axis begins and ends where the data do, and no two of its marks have one name.
    #[test]
    fn marks_are_within_the_data_and_named_once(
        low in 1e-3..1e7_f64,
        share in prop_oneof![1e-9..1e-3_f64, 1e-3..1.0_f64, 1.0..1e4_f64],
        (scale, quantity) in any_axis(),
    ) {
        let high = low * (1.0 + share);
        let chart = chart(vec![(low, 1.0), (high, 2.0)], scale, quantity);
        let (x, _) = chart.layout(0.0, 250.0).unwrap();
        prop_assert_eq!((x.map.low, x.map.high), (low, high));
        let slack = (high - low) * 1e-6;
        for (value, name) in &x.marks {
            prop_assert!(*value >= low - slack && *value <= high + slack, "{value}");
            let named = x.marks.iter().filter(|(_, other)| other == name).count();
            prop_assert_eq!(named, 1, "{:?}", x.marks);
        }
    }

    #[test]
    fn data_are_the_points(
        points in proptest::collection::vec((0.0..1e6_f64, 0.0..1e6_f64), 2..9),
        (scale, quantity) in any_axis(),
    ) {
        let chart = chart(points.clone(), scale, quantity);
        let Some(data) = chart.data() else { return Ok(()) };
        prop_assert!(!data.contains(['<', '>', '&', '\u{ffff}']), "{data}");
        let data: serde_json::Value = serde_json::from_str(&data).unwrap();
        let parts = data["lines"][0]["parts"].as_array().unwrap();
        let numbers: Vec<f64> = parts
            .iter()
            .flat_map(|part| part.as_array().unwrap())
            .map(|number| number.as_f64().unwrap())
            .collect();
        let shown = points.iter().filter(|(x, y)| chart.x.shows(*x) && chart.y.shows(*y));
        let shown: Vec<f64> = shown.flat_map(|(x, y)| [*x, *y]).collect();
        prop_assert_eq!(numbers.len(), shown.len());
        for (number, value) in numbers.iter().zip(shown) {
            prop_assert!((number - value).abs() <= 1e-5 * value, "{number} {value}");
        }
    }
}
