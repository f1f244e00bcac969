//! Parquet files have the tables of the CSV files.

use std::collections::BTreeSet;
use std::path::Path;

use ::parquet::basic::{LogicalType, Repetition, Type as Physical};
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::record::Field;
use rackweave_lab::output::{OutputDir, SavedDir};
use rackweave_lab::tables::{Table, TableColumn, Values};
use rackweave_lab::{Batch, Results, Scenario};

/// Reads a table back; panics unless its columns have the types of a table's.
fn read(name: &str, bytes: Vec<u8>) -> Table {
    let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
    let schema = reader.metadata().file_metadata().schema_descr_ptr();
    let new = |at: usize| {
        let column = schema.column(at);
        assert_eq!(column.self_type().get_basic_info().repetition(), Repetition::OPTIONAL);
        let values = match (column.physical_type(), column.logical_type_ref()) {
            (Physical::INT64, None) => Values::Counts(Vec::new()),
            (Physical::DOUBLE, None) => Values::Reals(Vec::new()),
            (Physical::BYTE_ARRAY, Some(LogicalType::String)) => Values::Texts(Vec::new()),
            other => panic!("{name}, column {}: {other:?}", column.name()),
        };
        TableColumn { name: column.name().to_owned(), values }
    };
    let mut columns: Vec<TableColumn> = (0..schema.num_columns()).map(new).collect();
    for row in reader.get_row_iter(None).unwrap() {
        let row = row.unwrap().into_columns();
        for (column, (heading, field)) in columns.iter_mut().zip(row) {
            assert_eq!(column.name, heading);
            match (&mut column.values, field) {
                (Values::Counts(values), Field::Long(n)) => values.push(n.try_into().ok()),
                (Values::Reals(values), Field::Double(x)) => values.push(Some(x)),
                (Values::Texts(values), Field::Str(text)) => values.push(Some(text)),
                (Values::Counts(values), Field::Null) => values.push(None),
                (Values::Reals(values), Field::Null) => values.push(None),
                (Values::Texts(values), Field::Null) => values.push(None),
                (_, field) => panic!("{name}, column {heading}: {field:?}"),
            }
        }
    }
    Table { name: name.to_owned(), columns }
}

fn names(folder: &Path, extension: &str) -> BTreeSet<String> {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|it| it == extension));
    files.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

fn results(text: &str, sets: &[&str]) -> (Scenario, Results) {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let scenario = Scenario::parse("parquet.toml", text, Path::new("."), &sets, None).unwrap();
    let results = Batch::new(scenario.clone()).run(Some(1)).unwrap();
    (scenario, results)
}

/// A sweep with keys that are numbers, texts and missing, a background stream, messages that fail and seeds.
const MESSAGES: &str = r#"
    fabric = { topology = "single-switch", hosts = 4, host_link = "10 Gbps" }
    transport.name = "homa"
    workload = { arrivals = "poisson", sizes = "W2", load = 0.5 }
    measure = { messages = 60, messages_csv = true, time_limit = "5 ms" }
    [[background]]
    arrivals = "incast"
    sizes = "10 KB"
    [sweep]
    transport.name = ["homa", "tcp"]
    workload.load = [0.3, 0.75]
    seed = [1, 2]
"#;

const CAST: &str = r#"
    fabric = { topology = "leaf-spine", leaves = 2, hosts_per_leaf = 3, spines = 1 }
    transport.name = "orca"
    [workload.cast]
    sender = 0
    receivers = [1, 2, 3, 4]
    files = ["100 KB", "20 KB"]
"#;

#[test]
fn every_csv_file_is_a_parquet_file_with_its_types_values_and_nulls() {
    let (mut nulls, mut kinds) = (0, [0; 3]);
    for (text, expected) in [
        (MESSAGES, &["points", "streams", "messages", "over_seeds", "links"][..]),
        (CAST, &["points", "cast_files", "cast_receivers"][..]),
    ] {
        let (scenario, results) = results(text, &[]);
        let folder = tempfile::tempdir().unwrap();
        let out = OutputDir::prepare(folder.path()).unwrap().with_parquet(true).unwrap();
        out.write(&scenario, &results, "").unwrap();
        let tables = names(folder.path(), "csv");
        assert!(expected.iter().all(|name| tables.contains(*name)), "{tables:?}");
        assert_eq!(names(folder.path(), "parquet"), tables);
        for name in &tables {
            let file = |extension| folder.path().join(format!("{name}.{extension}"));
            let csv = std::fs::read_to_string(file("csv")).unwrap();
            let csv = Table::from_csv(name, &csv).unwrap();
            assert_eq!(read(name, std::fs::read(file("parquet")).unwrap()), csv);
            for column in &csv.columns {
                let (kind, missing) = match &column.values {
                    Values::Counts(values) => (0, values.iter().filter(|it| it.is_none()).count()),
                    Values::Reals(values) => (1, values.iter().filter(|it| it.is_none()).count()),
                    Values::Texts(values) => (2, values.iter().filter(|it| it.is_none()).count()),
                };
                kinds[kind] += csv.rows();
                nulls += missing;
            }
        }
    }
    assert!(nulls > 0 && kinds.iter().all(|rows| *rows > 0), "{nulls} nulls, {kinds:?} rows");
}

#[test]
fn parquet_changes_no_other_file_and_does_not_outlive_its_results() {
    let (scenario, results) = results(MESSAGES, &["sweep.seed=[1]"]);
    let [with, without, copy] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let write = |folder: &Path, parquet| {
        let out = OutputDir::prepare(folder).unwrap().with_parquet(parquet).unwrap();
        out.write(&scenario, &results, "").unwrap();
    };
    write(with.path(), true);
    write(without.path(), false);
    for file in std::fs::read_dir(without.path()).unwrap() {
        let name = file.unwrap().file_name();
        let bytes = |folder: &Path| std::fs::read(folder.join(&name)).unwrap();
        assert_eq!(bytes(with.path()), bytes(without.path()), "{name:?}");
    }
    SavedDir::open(with.path())
        .unwrap()
        .copy_to(&OutputDir::prepare(copy.path()).unwrap())
        .unwrap();
    let tables = names(with.path(), "parquet");
    assert!(tables.contains("messages"), "{tables:?}");
    assert_eq!(names(copy.path(), "parquet"), tables);
    for name in &tables {
        let bytes = |folder: &Path| std::fs::read(folder.join(format!("{name}.parquet"))).unwrap();
        assert_eq!(bytes(copy.path()), bytes(with.path()));
    }
    // Another run leaves those of this one as little as its CSV files; what is no table of results is somebody else's.
    std::fs::write(with.path().join("mine.parquet"), "mine").unwrap();
    write(with.path(), false);
    assert_eq!(names(with.path(), "parquet"), BTreeSet::from(["mine".to_owned()]));
}

#[test]
fn long_tables_have_several_row_groups() {
    let rows = (1 << 20) + 3;
    let counts = (0..rows).map(|n| (n % 5 != 0).then_some(n)).collect();
    let texts = (0..rows).map(|n| (n % 7 != 0).then(|| (n % 11).to_string())).collect();
    let column = |name: &str, values| TableColumn { name: name.to_owned(), values };
    let columns = vec![
        column("n", Values::Counts(counts)),
        column("text", Values::Texts(texts)),
        column("largest", Values::Counts(vec![Some(i64::MAX as u64); rows as usize])),
    ];
    let table = Table { name: "long".to_owned(), columns };
    let mut bytes = Vec::new();
    table.write_parquet(&mut bytes).unwrap();
    let reader = SerializedFileReader::new(bytes::Bytes::from(bytes.clone())).unwrap();
    assert_eq!(reader.num_row_groups(), 2);
    assert!(read("long", bytes) == table);
    let empty =
        Table { name: "empty".to_owned(), columns: vec![column("x", Values::Reals(Vec::new()))] };
    let mut bytes = Vec::new();
    empty.write_parquet(&mut bytes).unwrap();
    assert_eq!(read("empty", bytes), empty);
}
