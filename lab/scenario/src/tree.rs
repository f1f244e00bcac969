//! A scenario as a tree whose every key and value knows where it was written.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

/// Where a key or value was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// 0: the scenario file; n: the n-th `--set`; see [`super::source::Sources`].
    pub source: usize,
    /// The first byte.
    pub start: usize,
    /// The byte behind the last.
    pub end: usize,
}

impl Origin {
    /// Returns the place of these bytes of a text.
    pub fn new(source: usize, span: Range<usize>) -> Self {
        Self { source, start: span.start, end: span.end }
    }
}

/// A value and where it was written.
#[derive(Clone, Debug)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Where it is.
    pub origin: Origin,
}

/// A value of TOML.
#[derive(Clone, Debug)]
pub enum Value {
    /// A string.
    String(String),
    /// A whole number.
    Integer(i64),
    /// A number.
    Float(f64),
    /// `true` or `false`.
    Boolean(bool),
    /// TOML has them, scenarios don't: kept only to say so.
    Datetime(String),
    /// A list.
    Array(Vec<Node>),
    /// A table.
    Table(Table),
}

/// Entries in the order in which they were written.
#[derive(Clone, Debug, Default)]
pub struct Table(pub Vec<Entry>);

/// A key of a table, with its value.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Where the key is.
    pub key_origin: Origin,
    /// Its value.
    pub node: Node,
}

impl Table {
    /// Returns the entry of a key.
    pub fn get(&self, key: &str) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.key == key)
    }

    /// Removes a key, and returns its entry.
    pub fn remove(&mut self, key: &str) -> Option<Entry> {
        let index = self.0.iter().position(|entry| entry.key == key)?;
        Some(self.0.remove(index))
    }

    /// Replaces the entry of this key, or adds it.
    pub fn insert(&mut self, entry: Entry) {
        match self.0.iter_mut().find(|other| other.key == entry.key) {
            Some(other) => *other = entry,
            None => self.0.push(entry),
        }
    }

    /// The value at a dotted path; a number is an index into an array.
    pub fn find(&self, path: &str) -> Option<&Node> {
        match path.split_once('.') {
            None => self.get(path).map(|entry| &entry.node),
            Some((head, rest)) => self.get(head)?.node.find(rest),
        }
    }

    /// The value at a dotted path, or at as much of the path as there is.
    pub fn find_nearest(&self, path: &str) -> Option<&Node> {
        let parent = || path.rsplit_once('.').and_then(|(parent, _)| self.find_nearest(parent));
        self.find(path).or_else(parent)
    }

    /// Sets the value at a path, making tables on the way.
    pub fn set(&mut self, path: &[&str], key_origin: Origin, node: Node) -> Result<(), NoTable> {
        let [head, rest @ ..] = path else { return Err(NoTable { at: String::new() }) };
        if rest.is_empty() {
            self.insert(Entry { key: (*head).to_owned(), key_origin, node });
            return Ok(());
        }
        if self.get(head).is_none() {
            let table = Node { value: Value::Table(Self::default()), origin: key_origin };
            self.0.push(Entry { key: (*head).to_owned(), key_origin, node: table });
        }
        let entry = self.0.iter_mut().find(|entry| entry.key == *head);
        entry.map_or_else(
            || Err(NoTable { at: (*head).to_owned() }),
            |entry| entry.node.set(head, rest, key_origin, node),
        )
    }
}

/// A path that goes on below something that has no keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoTable {
    /// What it is.
    pub at: String,
}

impl Node {
    /// Returns the text, if it is a string.
    pub fn as_str(&self) -> Option<&str> {
        if let Value::String(text) = &self.value { Some(text) } else { None }
    }

    /// What it is, in words.
    pub fn describe(&self) -> String {
        match &self.value {
            Value::String(text) => format!("the string {text:?}"),
            Value::Integer(n) => n.to_string(),
            Value::Float(x) => x.to_string(),
            Value::Boolean(b) => format!("`{b}`"),
            Value::Datetime(text) => format!("the date {text}"),
            Value::Array(_) => "a list".into(),
            Value::Table(_) => "a table".into(),
        }
    }

    fn find(&self, path: &str) -> Option<&Self> {
        match &self.value {
            Value::Table(table) => table.find(path),
            Value::Array(items) => {
                let (head, rest) = path.split_once('.').unwrap_or((path, ""));
                let item = items.get(head.parse::<usize>().ok()?)?;
                if rest.is_empty() { Some(item) } else { item.find(rest) }
            }
            _ => None,
        }
    }

    fn set(&mut self, name: &str, path: &[&str], key: Origin, node: Self) -> Result<(), NoTable> {
        let no_table = || NoTable { at: name.to_owned() };
        match &mut self.value {
            Value::Table(table) => table.set(path, key, node),
            Value::Array(items) => {
                let [index, rest @ ..] = path else { return Err(no_table()) };
                let index: usize = index.parse().map_err(|_| no_table())?;
                let item = items.get_mut(index).ok_or_else(no_table)?;
                if rest.is_empty() {
                    *item = node;
                    Ok(())
                } else {
                    item.set(name, rest, key, node)
                }
            }
            _ => Err(no_table()),
        }
    }

    /// The same value without its places.
    pub fn to_toml(&self) -> toml::Value {
        match &self.value {
            Value::String(text) | Value::Datetime(text) => toml::Value::String(text.clone()),
            Value::Integer(n) => toml::Value::Integer(*n),
            Value::Float(x) => toml::Value::Float(*x),
            Value::Boolean(b) => toml::Value::Boolean(*b),
            Value::Array(items) => toml::Value::Array(items.iter().map(Self::to_toml).collect()),
            Value::Table(table) => toml::Value::Table(table.to_toml()),
        }
    }

    /// The same value as JSON, for results.
    pub fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::String(text) | Value::Datetime(text) => text.clone().into(),
            Value::Integer(n) => (*n).into(),
            Value::Float(x) => (*x).into(),
            Value::Boolean(b) => (*b).into(),
            Value::Array(items) => items.iter().map(Self::to_json).collect(),
            Value::Table(table) => serde_json::Value::Object(
                table.0.iter().map(|entry| (entry.key.clone(), entry.node.to_json())).collect(),
            ),
        }
    }
}

impl Table {
    /// Returns the table without places.
    pub fn to_toml(&self) -> toml::Table {
        self.0.iter().map(|entry| (entry.key.clone(), entry.node.to_toml())).collect()
    }
}

/// Why a text is not TOML.
pub struct NotToml {
    /// What is wrong, in the words of the parser.
    pub message: String,
    /// The bytes that are wrong.
    pub span: Range<usize>,
}

impl From<toml::de::Error> for NotToml {
    fn from(error: toml::de::Error) -> Self {
        Self { message: error.message().to_owned(), span: error.span().unwrap_or(0..0) }
    }
}

/// Reads a document.
pub fn parse_document(text: &str, source: usize) -> Result<Table, NotToml> {
    let document = DeTable::parse(text)?;
    table(document.get_ref(), source, 0)
}

/// Reads one value, which begins `shift` bytes into its source.
pub fn parse_value(text: &str, source: usize, shift: usize) -> Result<Node, NotToml> {
    let value = DeValue::parse(text)?;
    node(value.get_ref(), value.span(), source, shift)
}

fn table(table: &DeTable<'_>, source: usize, shift: usize) -> Result<Table, NotToml> {
    let mut entries = Vec::with_capacity(table.len());
    for (key, value) in table {
        entries.push(Entry {
            key: key.get_ref().clone().into_owned(),
            key_origin: Origin::new(source, shifted(key.span(), shift)),
            node: node(value.get_ref(), value.span(), source, shift)?,
        });
    }
    entries.sort_by_key(|entry| entry.key_origin.start);
    Ok(Table(entries))
}

fn node(
    value: &DeValue<'_>,
    span: Range<usize>,
    source: usize,
    shift: usize,
) -> Result<Node, NotToml> {
    let bad =
        |message: &str| NotToml { message: message.into(), span: shifted(span.clone(), shift) };
    let plain = match value {
        DeValue::String(text) => Value::String(text.clone().into_owned()),
        DeValue::Integer(digits) => Value::Integer(
            i64::from_str_radix(digits.as_str(), digits.radix())
                .map_err(|_| bad("this number is too large"))?,
        ),
        DeValue::Float(digits) => {
            Value::Float(digits.as_str().parse().map_err(|_| bad("this number can't be read"))?)
        }
        DeValue::Boolean(b) => Value::Boolean(*b),
        DeValue::Datetime(date) => Value::Datetime(date.to_string()),
        DeValue::Array(items) => Value::Array(
            items
                .iter()
                .map(|item| node(item.get_ref(), item.span(), source, shift))
                .collect::<Result<_, _>>()?,
        ),
        DeValue::Table(entries) => Value::Table(table(entries, source, shift)?),
    };
    Ok(Node { value: plain, origin: Origin::new(source, shifted(span, shift)) })
}

fn shifted(span: Range<usize>, shift: usize) -> Range<usize> {
    span.start + shift..span.end + shift
}
