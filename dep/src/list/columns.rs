//! Listings as a table: columns of numbers in the format of Apache Arrow, which pandas, Polars, DuckDB and others read.
//!
//! A line of text has about 40 bytes for each reference, and most of the time of a list is its digits. A
//! row here has 25, and they are what the reader of the trace has computed.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use abi::ids::LiveAddr;
use arrow_array::{Array, BooleanArray, RecordBatch, UInt32Array, UInt64Array};
use arrow_buffer::{ArrowNativeType, BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use arrow_ipc::writer::{FileWriter, StreamWriter};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use tempfile::NamedTempFile;
use trace::columns::{Bits, Column, References, BATCH};
use trace::compile::CompiledUnit;
use trace::pipeline::{BatchSink, Job, Outlet};
use trace::walk::{unit_by_unit, MemoryReference, Passed, Sink};
use trace::Error;

use super::{Spare, Start};
use crate::Stop;

/// The columns. A block whose pc is null is code that is not recorded.
pub fn schema(references: bool) -> SchemaRef {
    let column = |name, of| Field::new(name, of, false);
    let tid = column("tid", DataType::UInt32);
    Arc::new(Schema::new(match references {
        true => vec![
            tid,
            column("pc", DataType::UInt64),
            column("address", DataType::UInt64),
            column("size", DataType::UInt32),
            column("write", DataType::Boolean),
        ],
        false => vec![tid, Field::new("pc", DataType::UInt64, true)],
    }))
}

/// The file of a table. It appears under its name when it is whole.
#[derive(Clone, Debug)]
pub struct Table(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// `-`: stdout.
    path: PathBuf,
    writer: Mutex<Option<Writer>>,
}

enum Writer {
    /// With an index of the batches at its end.
    File(Box<FileWriter<BufWriter<NamedTempFile>>>),
    /// To be read from its start.
    Stream(Box<StreamWriter<BufWriter<File>>>),
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Writer")
    }
}

impl FromStr for Table {
    type Err = std::convert::Infallible;

    fn from_str(path: &str) -> Result<Table, Self::Err> {
        Ok(Table(Arc::new(Inner { path: path.into(), writer: Mutex::default() })))
    }
}

impl Table {
    /// Makes it, if that has not been done: each thread of some recordings is listed on its own.
    pub fn begin(&self, schema: &Schema) -> Result<(), Stop> {
        let mut writer = self.0.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if writer.is_some() {
            return Ok(());
        }
        let made = match self.0.path.to_str() {
            // (Not by way of `Stdout`, which looks for the ends of lines.)
            Some("-") => {
                std::io::stdout().as_fd().try_clone_to_owned().map_err(ArrowError::from).and_then(
                    |out| {
                        let out = BufWriter::new(File::from(out));
                        Ok(Writer::Stream(Box::new(StreamWriter::try_new(out, schema)?)))
                    },
                )
            }
            _ => self.temporary().map_err(ArrowError::from).and_then(|file| {
                let out = BufWriter::with_capacity(1 << 20, file);
                Ok(Writer::File(Box::new(FileWriter::try_new(out, schema)?)))
            }),
        };
        *writer = Some(made.map_err(|e| self.stop(e))?);
        Ok(())
    }

    /// In the folder of the table. What is there and no file stays as it is.
    fn temporary(&self) -> std::io::Result<NamedTempFile> {
        let path = &self.0.path;
        if std::fs::metadata(path).is_ok_and(|there| !there.is_file()) {
            return Err(std::io::Error::other("it is no file (- is stdout)"));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut file = tempfile::Builder::new();
        file.prefix(".dep-table");
        // As other programs make files: for whom the umask says.
        file.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        file.tempfile_in(folder.unwrap_or(".".as_ref()))
    }

    /// Appends rows.
    pub fn append(&self, rows: &RecordBatch) -> Result<(), Stop> {
        let mut writer = self.0.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let written = match &mut *writer {
            _ if rows.num_rows() == 0 => Ok(()),
            Some(Writer::File(writer)) => writer.write(rows),
            Some(Writer::Stream(writer)) => writer.write(rows),
            None => Ok(()),
        };
        written.map_err(|e| {
            // There is no half of a table.
            *writer = None;
            self.stop(e)
        })
    }

    /// All rows are there.
    pub fn finish(&self) -> Result<(), Stop> {
        let writer = self.0.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let finished = match writer {
            Some(Writer::File(writer)) => writer.into_inner().and_then(|out| {
                let file = out.into_inner().map_err(|e| e.into_error())?;
                Ok(file.persist(&self.0.path).map(|_: File| ()).map_err(|e| e.error)?)
            }),
            Some(Writer::Stream(mut writer)) => {
                writer.finish().and_then(|()| Ok(writer.get_mut().flush()?))
            }
            None => Ok(()),
        };
        finished.map_err(|e| self.stop(e))
    }

    fn stop(&self, error: ArrowError) -> Stop {
        let path = self.0.path.display();
        match error {
            ArrowError::IoError(_, error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                Stop::Quiet
            }
            ArrowError::IoError(_, error) => Error(format!("{path}: cannot write: {error}")).into(),
            error => Error(format!("{path}: cannot write: {error}")).into(),
        }
    }
}

/// Rows of one thread; of its [`Start`] the lengths are rows.
pub struct Rows {
    batch: RecordBatch,
    start: Start,
}

impl Rows {
    /// Where they start.
    pub fn start(&self) -> &Start {
        &self.start
    }

    /// Without the first `skip` ones, and no more than are `left`.
    pub fn part(&self, skip: usize, left: &mut u64) -> RecordBatch {
        let there = self.batch.num_rows() - skip;
        let wanted = there.min(usize::try_from(*left).unwrap_or(usize::MAX));
        if *left < u64::MAX {
            *left -= wanted as u64;
        }
        self.batch.slice(skip, wanted)
    }

    /// They are of no use any more.
    pub fn leave(self, spare: &Spare<RecordBatch>) {
        spare.give(self.batch);
    }
}

/// Room for references.
fn references(spare: &Spare<RecordBatch>) -> References {
    let mut memory = memory(spare);
    let pcs = Column::reusing(again(memory.next()));
    let addresses = Column::reusing(again(memory.next()));
    let sizes = Column::reusing(again(memory.next()));
    References { pcs, addresses, sizes, writes: Bits::reusing(again(memory.next())) }
}

/// The same for blocks.
fn blocks(spare: &Spare<RecordBatch>) -> Column<u64> {
    Column::reusing(again(memory(spare).next()))
}

/// The columns of a batch that was written, but for the thread.
fn memory(spare: &Spare<RecordBatch>) -> impl Iterator<Item = Buffer> {
    let used = spare.take().map(RecordBatch::into_parts);
    let columns = used.into_iter().flat_map(|(_, columns, _)| columns);
    columns.skip(1).filter_map(|column| {
        let data = column.to_data();
        data.buffers().first().cloned()
    })
}

/// The memory of a column that nobody else has.
fn again<T: ArrowNativeType>(buffer: Option<Buffer>) -> Vec<T> {
    buffer.and_then(|buffer| buffer.into_vec().ok()).unwrap_or_default()
}

/// Gathers the rows of a chunk.
pub struct Gatherer<'a, const REFERENCES: bool> {
    outlet: Outlet<Rows>,
    schema: &'a SchemaRef,
    spare: &'a Spare<RecordBatch>,
    /// As often as a batch may need it.
    tid: UInt32Array,
    range: Option<Range<LiveAddr>>,
    /// Code that is not recorded has rows, too.
    outside: bool,
    /// Nothing was executed yet.
    fresh: bool,
    start: Start,
    references: References,
    /// Of blocks.
    pcs: Column<u64>,
    /// Rows of code that is not recorded.
    unrecorded: Vec<usize>,
}

impl<'a, const REFERENCES: bool> Gatherer<'a, REFERENCES> {
    pub fn new(
        job: Job,
        outlet: Outlet<Rows>,
        schema: &'a SchemaRef,
        spare: &'a Spare<RecordBatch>,
        range: Option<Range<LiveAddr>>,
        outside: bool,
    ) -> Gatherer<'a, REFERENCES> {
        Gatherer {
            outlet,
            schema,
            spare,
            tid: UInt32Array::from_value(job.name, BATCH),
            range,
            outside,
            fresh: true,
            start: Start::default(),
            references: if REFERENCES { references(spare) } else { References::default() },
            pcs: if REFERENCES { Column::default() } else { blocks(spare) },
            unrecorded: Vec::new(),
        }
    }

    /// A column.
    #[inline]
    fn column(&self) -> &Column<u64> {
        if REFERENCES {
            &self.references.pcs
        } else {
            &self.pcs
        }
    }

    fn wants(&self, pc: LiveAddr) -> bool {
        self.range.as_ref().is_none_or(|r| r.contains(&pc))
    }

    /// The column with the thread.
    fn tids(&mut self, rows: usize) -> Arc<dyn Array> {
        if self.tid.len() < rows {
            self.tid = UInt32Array::from_value(self.tid.value(0), rows);
        }
        Arc::new(self.tid.slice(0, rows))
    }

    fn send(&mut self) {
        let rows = self.column().rows();
        if rows == 0 || !self.outlet.is_open() {
            return;
        }
        let tids = self.tids(rows);
        let numbers = |column: Column<u64>| {
            ScalarBuffer::new(Buffer::from_vec(column.into_memory()), 0, rows)
        };
        let columns: Vec<Arc<dyn Array>> = if REFERENCES {
            let all = std::mem::replace(&mut self.references, references(self.spare));
            let [pcs, addresses] =
                [all.pcs, all.addresses].map(|column| UInt64Array::new(numbers(column), None));
            let sizes = ScalarBuffer::new(Buffer::from_vec(all.sizes.into_memory()), 0, rows);
            let writes = BooleanBuffer::new(Buffer::from_vec(all.writes.into_words()), 0, rows);
            vec![
                tids,
                Arc::new(pcs),
                Arc::new(addresses),
                Arc::new(UInt32Array::new(sizes, None)),
                Arc::new(BooleanArray::new(writes, None)),
            ]
        } else {
            let pcs = std::mem::replace(&mut self.pcs, blocks(self.spare));
            let mut unrecorded = self.unrecorded.drain(..).peekable();
            let nulls = unrecorded.peek().is_some().then(|| {
                let is_known = |row| unrecorded.next_if_eq(&row).is_none();
                NullBuffer::from((0..rows).map(is_known).collect::<Vec<bool>>())
            });
            vec![tids, Arc::new(UInt64Array::new(numbers(pcs), nulls))]
        };
        let start = std::mem::take(&mut self.start);
        let batch = RecordBatch::try_new(Arc::clone(self.schema), columns);
        self.outlet.send(Rows { batch: batch.expect("columns of one length"), start });
    }

    #[inline]
    fn send_if_full(&mut self) {
        if self.column().is_full() {
            self.send();
        }
    }
}

impl<const REFERENCES: bool> Sink for Gatherer<'_, REFERENCES> {
    const REFERENCES: bool = REFERENCES;

    fn block(&mut self, pc: LiveAddr, uncertain: bool) {
        if REFERENCES || !self.wants(pc) {
            return;
        }
        self.pcs.push(pc.0);
        if uncertain {
            // Always the first row of the chunk's first batch.
            self.start.uncertain = Some((pc, self.pcs.rows()));
        }
        self.send_if_full();
    }

    fn unit(&mut self, _unit: &CompiledUnit, _partial: bool) {
        self.fresh = false;
    }

    fn outside(&mut self) {
        if REFERENCES || !self.outside {
            return;
        }
        if self.fresh {
            self.start.outside = 1;
        }
        self.unrecorded.push(self.pcs.rows());
        self.pcs.push(0);
        self.send_if_full();
    }

    #[inline]
    fn reference(&mut self, reference: MemoryReference) {
        if REFERENCES && self.wants(reference.pc) {
            self.references.push(reference);
            self.send_if_full();
        }
    }

    fn passage(&mut self, passed: &Passed<'_>) {
        if self.range.is_some() {
            return unit_by_unit(passed, self);
        }
        self.fresh = false;
        if REFERENCES {
            self.references.passage(passed);
        } else {
            self.pcs.blocks(passed);
        }
        self.send_if_full();
    }

    fn go_on(&mut self) -> bool {
        self.outlet.is_open()
    }
}

impl<const REFERENCES: bool> BatchSink for Gatherer<'_, REFERENCES> {
    type Batch = Rows;
    type Kept = ();

    fn finish(mut self) -> Outlet<Rows> {
        self.send();
        self.outlet
    }
}
