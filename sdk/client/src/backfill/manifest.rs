//! Lists of objects: CSV, JSONL or Parquet with the columns `uri`, and optionally `size`, `checksum`, `key`, `etag`, `version`.

use crate::SourceUnreadable;
use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
};

/// The longest line of a list, in bytes.
const MAX_LINE: usize = 1 << 20;

/// One row. Empty fields are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "jobs", derive(serde::Deserialize))]
#[cfg_attr(feature = "jobs", serde(default))]
pub(super) struct Row {
    pub(super) uri: String,
    pub(super) size: Option<u64>,
    pub(super) checksum: Option<String>,
    pub(super) key: Option<String>,
    pub(super) etag: Option<String>,
    pub(super) version: Option<String>,
}

/// Rows of a list as they are read. An error of one row does not end the list; an error of reading does.
pub(super) type Rows = Box<dyn Iterator<Item = Result<Row, SourceUnreadable>>>;

/// Opens a list; its form follows from the name: `.csv`, `.jsonl` (or `.ndjson`), `.parquet`.
pub(super) fn open(path: &Path) -> Result<Rows, SourceUnreadable> {
    let unreadable = |why: String| SourceUnreadable { path: Some(path.to_owned()), why };
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default().to_ascii_lowercase();
    let file = File::open(path).map_err(|error| unreadable(error.to_string()))?;
    match &*extension {
        "csv" => csv(path, file),
        #[cfg(feature = "jobs")]
        "jsonl" | "ndjson" => Ok(jsonl(path, file)),
        #[cfg(feature = "parquet")]
        "parquet" => parquet::open(path, file),
        _ => Err(unreadable("its name must end with .csv, .jsonl or .parquet, so that its form is known".into())),
    }
}

/// Lines, bounded.
struct Lines {
    path: PathBuf,
    source: BufReader<File>,
    number: u64,
}

impl Lines {
    fn new(path: &Path, file: File) -> Self {
        Self { path: path.to_owned(), source: BufReader::new(file), number: 0 }
    }
    fn error(&self, why: impl std::fmt::Display) -> SourceUnreadable {
        SourceUnreadable { path: Some(self.path.clone()), why: format!("line {}: {why}", self.number) }
    }
    fn line(&mut self) -> Result<Option<String>, SourceUnreadable> {
        use std::io::Read as _;
        self.number += 1;
        let mut line = Vec::new();
        let read = (&mut self.source).take(MAX_LINE as u64).read_until(b'\n', &mut line);
        read.map_err(|error| self.error(error))?;
        if line.is_empty() {
            return Ok(None);
        }
        if line.len() == MAX_LINE {
            return Err(self.error("it is too long"));
        }
        String::from_utf8(line).map(Some).map_err(|_| self.error("it is not UTF-8"))
    }
}

#[cfg(feature = "jobs")]
fn jsonl(path: &Path, file: File) -> Rows {
    let mut lines = Lines::new(path, file);
    let mut ended = false;
    Box::new(std::iter::from_fn(move || {
        while !ended {
            match lines.line() {
                Ok(Some(line)) if line.trim().is_empty() => {}
                Ok(Some(line)) => {
                    return Some(serde_json::from_str::<Row>(&line).map_err(|error| lines.error(error)));
                }
                Ok(None) => ended = true,
                Err(error) => {
                    ended = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }))
}

fn csv(path: &Path, file: File) -> Result<Rows, SourceUnreadable> {
    let mut lines = Lines::new(path, file);
    let header = record(&mut lines)?.unwrap_or_default();
    let columns: Vec<_> = header.iter().map(|name| name.trim().trim_start_matches('\u{feff}').to_lowercase()).collect();
    if !columns.iter().any(|name| name == "uri") {
        return Err(lines.error("the first line must name the columns, one of them uri"));
    }
    let mut ended = false;
    Ok(Box::new(std::iter::from_fn(move || {
        while !ended {
            let fields = match record(&mut lines) {
                Ok(Some(fields)) => fields,
                Ok(None) => break,
                Err(error) => {
                    ended = true;
                    return Some(Err(error));
                }
            };
            if fields.len() == 1 && fields[0].trim().is_empty() {
                continue;
            }
            if fields.len() != columns.len() {
                let why = format!("{} fields, the first line names {} columns", fields.len(), columns.len());
                return Some(Err(lines.error(why)));
            }
            return Some(row(&columns, fields).map_err(|why| lines.error(why)));
        }
        ended = true;
        None
    })))
}

fn row(columns: &[String], fields: Vec<String>) -> Result<Row, String> {
    let mut row = Row::default();
    for (column, field) in columns.iter().zip(fields) {
        let given = Some(field.clone()).filter(|field| !field.is_empty());
        match &**column {
            "uri" => row.uri = field,
            "size" => {
                let size =
                    given.map(|given| given.trim().parse().map_err(|_| format!("the size {given:?} is no number")));
                row.size = size.transpose()?;
            }
            "checksum" => row.checksum = given,
            "key" => row.key = given,
            "etag" => row.etag = given,
            "version" => row.version = given,
            _ => {}
        }
    }
    Ok(row)
}

/// One record of RFC 4180: fields between commas, in quotes where they hold commas, quotes or line ends.
fn record(lines: &mut Lines) -> Result<Option<Vec<String>>, SourceUnreadable> {
    let Some(mut line) = lines.line()? else { return Ok(None) };
    let (mut fields, mut field, mut quoted) = (Vec::new(), String::new(), false);
    loop {
        let mut chars = line.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '"' if quoted && chars.next_if_eq(&'"').is_some() => field.push('"'),
                '"' if quoted => quoted = false,
                '"' if field.is_empty() => quoted = true,
                ',' if !quoted => fields.push(std::mem::take(&mut field)),
                '\r' if !quoted && chars.peek() == Some(&'\n') => {}
                '\n' if !quoted => {}
                other => field.push(other),
            }
        }
        if !quoted {
            fields.push(field);
            return Ok(Some(fields));
        }
        if field.len() > MAX_LINE {
            return Err(lines.error("a field in quotes is too long"));
        }
        line = lines.line()?.ok_or_else(|| lines.error("a quote is not closed"))?;
    }
}

#[cfg(feature = "parquet")]
mod parquet {
    use super::{Row, Rows};
    use crate::SourceUnreadable;
    use ::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use arrow::{
        array::{Array as _, ArrayRef, AsArray as _, RecordBatch, RecordBatchReader as _},
        compute::cast,
        datatypes::{DataType, UInt64Type},
    };
    use std::{fs::File, path::Path};

    pub(super) fn open(path: &Path, file: File) -> Result<Rows, SourceUnreadable> {
        let path = path.to_owned();
        let unreadable = move |why: String| SourceUnreadable { path: Some(path.clone()), why };
        let reader = ParquetRecordBatchReaderBuilder::try_new(file)
            .and_then(|builder| builder.build())
            .map_err(|error| unreadable(error.to_string()))?;
        if reader.schema().column_with_name("uri").is_none() {
            return Err(unreadable("it has no column uri".into()));
        }
        Ok(Box::new(reader.flat_map(move |batch| {
            let rows = batch.map_err(|error| error.to_string()).and_then(|batch| rows(&batch));
            match rows {
                Ok(rows) => rows.into_iter().map(Ok).collect::<Vec<_>>(),
                Err(why) => vec![Err(unreadable(why))],
            }
        })))
    }

    fn column(batch: &RecordBatch, name: &str, kind: &DataType) -> Result<Option<ArrayRef>, String> {
        let Some(column) = batch.column_by_name(name) else { return Ok(None) };
        cast(column, kind).map(Some).map_err(|error| format!("the column {name}: {error}"))
    }

    fn rows(batch: &RecordBatch) -> Result<Vec<Row>, String> {
        let texts = |name: &str| column(batch, name, &DataType::Utf8);
        let (uri, checksum, key) = (texts("uri")?, texts("checksum")?, texts("key")?);
        let (etag, version) = (texts("etag")?, texts("version")?);
        let size = column(batch, "size", &DataType::UInt64)?;
        let text = |column: &Option<ArrayRef>, at: usize| {
            let column = column.as_ref()?.as_string::<i32>();
            column.is_valid(at).then(|| column.value(at).to_owned()).filter(|text| !text.is_empty())
        };
        let number = |at: usize| {
            let column = size.as_ref()?.as_primitive::<UInt64Type>();
            column.is_valid(at).then(|| column.value(at))
        };
        let row = |at| Row {
            uri: text(&uri, at).unwrap_or_default(),
            size: number(at),
            checksum: text(&checksum, at),
            key: text(&key, at),
            etag: text(&etag, at),
            version: text(&version, at),
        };
        Ok((0..batch.num_rows()).map(row).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(name: &str, content: &str) -> Vec<Result<Row, String>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        match open(&path) {
            Ok(rows) => rows.map(|row| row.map_err(|error| error.to_string())).collect(),
            Err(error) => vec![Err(error.to_string())],
        }
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn csv_has_quotes_and_names_its_columns() {
        let content =
            "key,uri,size,unknown\r\n\"a,\"\"b\"\"\n c\",s3://b/1,7,x\r\n\n,s3://b/2,,\nk,s3://b/3,many,\nk\n";
        let found = rows("list.csv", content);
        let first = Row { uri: "s3://b/1".into(), key: some("a,\"b\"\n c"), size: Some(7), ..Row::default() };
        assert_eq!(found[0], Ok(first));
        assert_eq!(found[1], Ok(Row { uri: "s3://b/2".into(), ..Row::default() }));
        assert!(found[2].as_ref().unwrap_err().contains("many"), "{found:?}");
        assert!(found[3].as_ref().unwrap_err().contains("1 fields"), "{found:?}");
        assert_eq!(found.len(), 4);
        assert!(rows("list.csv", "name\nx\n")[0].as_ref().unwrap_err().contains("uri"));
        assert!(rows("list.csv", "uri\n\"x\n").last().unwrap().as_ref().unwrap_err().contains("quote"));
        assert!(rows("list.txt", "")[0].as_ref().unwrap_err().contains(".parquet"));
    }

    #[cfg(feature = "jobs")]
    #[test]
    fn jsonl_is_a_document_a_line() {
        let found = rows("list.jsonl", "{\"uri\":\"s3://b/1\",\"size\":3,\"etag\":\"e\",\"more\":1}\n\nnonsense\n");
        let first = Row { uri: "s3://b/1".into(), size: Some(3), etag: some("e"), ..Row::default() };
        assert_eq!(found[0], Ok(first));
        assert!(found[1].as_ref().unwrap_err().contains("line 3"), "{found:?}");
    }

    #[cfg(feature = "parquet")]
    #[test]
    fn parquet_may_have_other_integers_and_nulls() {
        use arrow::array::{Int32Array, RecordBatch, StringArray};
        use std::sync::Arc;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list.parquet");
        let uri = Arc::new(StringArray::from(vec!["s3://b/1", "s3://b/2"])) as _;
        let size = Arc::new(Int32Array::from(vec![Some(5), None])) as _;
        let batch = RecordBatch::try_from_iter_with_nullable([("uri", uri, false), ("size", size, true)]).unwrap();
        let file = File::create(&path).unwrap();
        let mut writer = ::parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let found: Vec<_> = open(&path).unwrap().map(Result::unwrap).collect();
        let expected = [
            Row { uri: "s3://b/1".into(), size: Some(5), ..Row::default() },
            Row { uri: "s3://b/2".into(), ..Row::default() },
        ];
        assert_eq!(found, expected);
    }
}
