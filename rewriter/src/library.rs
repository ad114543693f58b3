//! Shared libraries: which ones a program needs, and the translation of one as a pack
//! ([`abi::library`]).

use crate::convert::{index, short};
use crate::elf::ProgramHeader;
use crate::error::{unsupported, Error, Result};
use crate::input::{read_file, Input};
use crate::roots;
use crate::say;
use crate::selection::{Choice, Selection};
use crate::translate::Target;
use crate::variants::{Blocks, Variants};
use abi::file::State;
use abi::layout::{page_up, PAGE};
use abi::library::{self, flags, key, PackHeader, Thunks, HEAD, HEADER_SIZE};
use abi::options::{Options, Pointers};
use abi::selection::Rules;
use instrument::fragment;
use lifter::discover::discover;
use object::elf;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A library that goes into an output, and why it does not if so.
#[derive(Serialize, Debug)]
pub struct Report {
    pub path: PathBuf,
    pub units: usize,
    pub code_bytes: usize,
    /// Why it is left to run time.
    pub left: Option<String>,
    /// The file in the cache, if the translation does not travel along.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
}

impl Report {
    /// Of a library that is left to run time.
    pub fn left(path: &Path, why: String) -> Report {
        Report { path: path.to_owned(), units: 0, code_bytes: 0, left: Some(why), file: None }
    }

    pub fn print(&self) {
        let path = self.path.display();
        let place = if self.file.is_some() { ", in the cache" } else { "" };
        match &self.left {
            None => {
                let (units, bytes) = (self.units, self.code_bytes);
                say!("{path}: {units} units, {bytes} bytes of translated code{place}")
            }
            Some(why) => say!("{path}: left to run time: {why}"),
        }
    }
}

/// A library, read and checked.
pub struct Library {
    pub path: PathBuf,
    input: Input,
}

impl Library {
    pub fn read(path: &Path) -> Result<Library> {
        let input = Input::parse_library(read_file(path)?)?;
        if input.executable_segments().next().is_none() {
            return Err(unsupported!("the library has no code"));
        }
        Ok(Library { path: path.to_owned(), input })
    }

    /// Window of the first unit in a file of the library's own.
    pub fn shared_window(&self) -> u32 {
        let segment = self.input.executable_segments().next();
        abi::library::shared_window(key(segment.map_or(&[][..], |p| self.input.segment_bytes(p))))
    }

    /// Name of a file of the library's own.
    pub fn file_name(&self, options: Options, rules: &Rules) -> String {
        abi::library::file_name_for(self.head(), options.to_word(), rules.key())
    }

    fn head(&self) -> [u64; 2] {
        head(&self.input)
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.input.bytes
    }

    /// Translates the library. `more`: addresses of code that a run has found.
    pub fn translate(
        &self,
        options: Options,
        selection: &Selection,
        fixed: bool,
        more: &[u64],
    ) -> Lifted<'_> {
        let choice = selection.of_library(&self.path, &self.input);
        let mut image = roots::image(&self.input);
        image.code_pointers.extend(more);
        let program = discover(&image, &mut |_, _| ());
        let blocks = Blocks::new(program, &image, options, choice.selected());
        let segments: Vec<_> = self.input.executable_segments().copied().collect();
        let ranges: Vec<_> = segments.iter().map(|p| p.address..p.end()).collect();
        let parts = segments.into_iter().zip(blocks.divide(&ranges)).collect();
        Lifted { library: self, image, parts, options, choice, fixed }
    }
}

/// A library whose code is known.
pub struct Lifted<'a> {
    library: &'a Library,
    image: lifter::image::Image<'a>,
    /// The executable segments, and what is in each.
    parts: Vec<(ProgramHeader, Blocks)>,
    options: Options,
    choice: Choice,
    fixed: bool,
}

impl Lifted<'_> {
    /// Unit windows that its translation takes.
    pub fn windows(&self) -> u32 {
        self.parts.iter().map(|(_, blocks)| windows_of(blocks)).sum()
    }

    /// The packs, one for each executable segment.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// The packs, one behind the other, with units from `first_window` on.
    pub fn pack(&self, first_window: u32) -> (Vec<u8>, Report) {
        let input = &self.library.input;
        let (mut bytes, mut first_window) = (Vec::new(), first_window);
        let mut code_distance = page_up(input.image_end());
        let path = self.library.path.clone();
        let read_only = input.read_only();
        let mut report = Report { path, units: 0, code_bytes: 0, left: None, file: None };
        for (part, (segment, blocks)) in self.parts.iter().enumerate() {
            let target = Target {
                options: self.options,
                selected: self.choice.selected(),
                code: code_distance,
                fixed: self.fixed,
                movable: true,
                first_window,
                constant: input.constant(),
                read_only: &read_only,
            };
            let translated = blocks.translate(&self.image, target);
            report.units += translated.recorded.units.list.count;
            report.code_bytes += translated.code_len();
            let description = Description {
                input,
                segment,
                following: self.parts.len() - 1 - part,
                translated: &translated,
                options: self.options,
                choice: &self.choice,
                fixed: self.fixed,
                code_distance,
                first_window,
            };
            bytes.extend_from_slice(&description.assemble());
            first_window += windows_of(blocks);
            code_distance += page_up(translated.code_len() as u64);
        }
        (bytes, report)
    }
}

/// Unit windows of a pack. One without units takes one, too: nobody else's.
fn windows_of(blocks: &Blocks) -> u32 {
    short(blocks.recorded.block_count()).div_ceil(abi::unit::TAGS_PER_WINDOW).max(1)
}

/// What a pack is made of.
struct Description<'a> {
    input: &'a Input,
    /// Where its code comes from.
    segment: &'a ProgramHeader,
    /// Further packs of the library behind it.
    following: usize,
    translated: &'a Variants,
    options: Options,
    choice: &'a Choice,
    fixed: bool,
    code_distance: u64,
    first_window: u32,
}

impl Description<'_> {
    fn assemble(&self) -> Vec<u8> {
        let (input, translated) = (self.input, self.translated);
        let mut bytes = vec![0; HEADER_SIZE];
        let mut place = |content: &[u8], align: usize| {
            bytes.resize(bytes.len().next_multiple_of(align), 0);
            let start = bytes.len() as u64;
            bytes.extend_from_slice(content);
            start
        };
        let segment = self.segment;
        let text_bytes = input.segment_bytes(segment);
        let offsets = translated.place(0, self.first_window, |table| place(table, 16));
        let pieces = self.choice.ranges.pieces();
        let words = pieces.as_flattened().iter().flat_map(|word| word.to_le_bytes());
        let selection = place(&words.collect::<Vec<u8>>(), 16);
        let text = place(text_bytes, 16);
        let code = place(&translated.code(), index(PAGE));
        let len = place(&[], index(PAGE));
        let mut bits = 0;
        if self.options.process.pointers == Pointers::Vector {
            bits |= flags::NEEDS_AVX512VL;
        }
        if self.fixed {
            bits |= flags::FIXED_WINDOW;
        }
        let [mut tables, mut plain] = offsets;
        tables.code += code;
        if translated.plain.is_some() {
            plain.code += code;
        }
        let plain_thunks =
            translated.plain.as_ref().map_or(Thunks::default(), |p| thunks(p.thunks));
        let mut header = PackHeader {
            magic: library::MAGIC,
            len,
            flags: bits,
            options: self.options.to_word(),
            rules: self.choice.rules.key(),
            selection,
            selection_count: pieces.len() as u64,
            head: head(input),
            content: key(text_bytes),
            segment: segment.address,
            segment_offset: segment.offset.0,
            segment_len: segment.file_size,
            code_distance: self.code_distance,
            thunks: thunks(translated.recorded.thunks),
            tables,
            plain_thunks,
            plain,
            text,
            following: self.following as u64,
            identity: [0; 2],
            file: State::default(),
        };
        bytes[..HEADER_SIZE].copy_from_slice(&header.to_bytes());
        header.identity = key(&bytes[..index(code)]);
        bytes[..HEADER_SIZE].copy_from_slice(&header.to_bytes());
        bytes
    }
}

fn thunks(thunks: fragment::Thunks) -> Thunks {
    let fragment::Thunks { start, direct, indirect } = thunks;
    Thunks { start: start.0.into(), direct: direct.into(), indirect: indirect.into() }
}

fn head(input: &Input) -> [u64; 2] {
    key(&input.bytes[..input.bytes.len().min(HEAD)])
}

/// The libraries that `path` needs, ld.so first, by their real paths; and the names of those that
/// are not found.
pub fn needed(path: &Path, interpreter: Option<&Path>) -> Result<(Vec<PathBuf>, Vec<String>)> {
    let tree = dependencies(path).map_err(|e| {
        let e = format!("{e} (--libraries runtime does not ask for them)");
        Error::file("find the libraries of", path, e)
    })?;
    let mut found = Vec::new();
    let mut missing = Vec::new();
    if let Some(interpreter) = interpreter {
        match interpreter.canonicalize() {
            Ok(real) => found.push(real),
            Err(_) => missing.push(interpreter.display().to_string()),
        }
    }
    // By name, so that the same input gives the same output.
    let libraries: BTreeMap<_, _> = tree.libraries.into_iter().collect();
    for (name, library) in libraries {
        match library.realpath.or_else(|| library.path.canonicalize().ok()) {
            Some(real) if found.contains(&real) => {}
            Some(real) => found.push(real),
            None => missing.push(name),
        }
    }
    Ok((found, missing))
}

/// What lddtree finds. It panics where a path is not what it expects (an interpreter `/`, `$ORIGIN`
/// in a directory whose name is not UTF-8): that is an error as others are.
fn dependencies(path: &Path) -> std::result::Result<lddtree::DependencyTree, String> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let found = std::panic::catch_unwind(|| {
        lddtree::DependencyAnalyzer::new(PathBuf::from("/")).analyze(path)
    });
    std::panic::set_hook(hook);
    match found {
        Ok(tree) => tree.map_err(|e| e.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(format!("a path is not as expected: {}", text.unwrap_or("no reason given")))
        }
    }
}

/// Path in the PT_INTERP of a program.
pub fn interpreter(input: &Input) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let bytes = input.segment_bytes(input.header_of(elf::PT_INTERP)?);
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(&bytes[..end])))
}

/// Bytes that libraries may take in the window.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// For their translations.
    pub translations: u64,
    /// For their translations and, behind the code cache, themselves.
    pub in_all: u64,
}

/// The packs of libraries for one output, one behind the other.
#[derive(Default)]
pub struct Packs {
    pub bytes: Vec<u8>,
    pub count: usize,
    pub reports: Vec<Report>,
    /// First window behind their units.
    pub next_window: u32,
}

/// Who is served first where there is not room for all: what every program runs, what earlier runs needed
/// (`more`), and then the smaller ones, so that as many as possible are served.
fn in_order_of_use<'a>(
    paths: &'a [PathBuf],
    more: &BTreeMap<PathBuf, Vec<u64>>,
) -> Vec<&'a PathBuf> {
    const FIRST: [&str; 6] = [
        "ld-linux-x86-64.so",
        "libc.so",
        "libpthread.so",
        "libm.so",
        "libstdc++.so",
        "libgcc_s.so",
    ];
    let mut order: Vec<&PathBuf> = paths.iter().collect();
    order.sort_by_key(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let common = FIRST.iter().position(|first| name.starts_with(first)).unwrap_or(FIRST.len());
        let size = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        (common, !more.contains_key(*path), size)
    });
    order
}

/// Translates libraries for an output whose own units end before window `first_window`, within
/// `room` bytes. Those that do not fit, or are not what we can translate, are left to run time.
/// `more`: addresses of code in a library that a run has found.
pub fn packs(
    paths: &[PathBuf],
    options: Options,
    selection: &Selection,
    fixed: bool,
    first_window: u32,
    room: Room,
    more: &BTreeMap<PathBuf, Vec<u64>>,
) -> Packs {
    let mut packs = Packs { next_window: first_window, ..Packs::default() };
    let mut originals = 0;
    let no_room = || "no room for it in the output's address space".to_owned();
    for path in in_order_of_use(paths, more) {
        let left = |why| Report::left(path, why);
        let library = match Library::read(path) {
            Ok(library) => library,
            Err(error) => {
                packs.reports.push(left(error.to_string()));
                continue;
            }
        };
        originals += page_up(library.input.image_end());
        // No instruction gets shorter.
        let code: u64 = library.input.executable_segments().map(|p| p.file_size).sum();
        let least = packs.bytes.len() as u64 + code;
        if least > room.translations || least + originals > room.in_all {
            packs.reports.push(left(no_room()));
            continue;
        }
        let lifted =
            library.translate(options, selection, fixed, more.get(path).map_or(&[], |m| m));
        if packs.next_window + lifted.windows() >= library::FIRST_SHARED_WINDOW {
            packs.reports.push(left("too many units".into()));
            continue;
        }
        let (bytes, report) = lifted.pack(packs.next_window);
        let translations = (packs.bytes.len() + bytes.len()) as u64;
        if translations > room.translations || translations + originals > room.in_all {
            packs.reports.push(left(no_room()));
            continue;
        }
        packs.next_window += lifted.windows();
        packs.bytes.extend_from_slice(&bytes);
        packs.count += lifted.parts();
        packs.reports.push(report);
    }
    packs
}
