//! Names of functions, from the symbol tables of the files that were mapped.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use abi::ids::LiveAddr;
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Object, ObjectSymbol, SymbolKind};
use trace::events::Event;
use trace::Trace;

use crate::replay::Ready;

/// A mapped file.
struct Module {
    live: Range<LiveAddr>,
    /// File offset of the mapping.
    offset: u64,
    path: PathBuf,
}

/// What a file says about its functions.
#[derive(Default)]
struct Functions {
    /// (address, size, name), ascending.
    list: Vec<(u64, u64, String)>,
    /// All that has a name and an address: (name, address, size).
    named: Vec<(String, u64, u64)>,
    /// (file offset, size, address) of the loaded segments.
    segments: Vec<(u64, u64, u64)>,
}

/// Looks names up; a file is read when it is first needed.
pub struct Symbols {
    modules: Vec<Module>,
    files: HashMap<PathBuf, Option<Functions>>,
}

impl Symbols {
    pub fn new(trace: &Trace) -> Symbols {
        // The program is where it is now.
        let modules = modules(trace, &trace.output, Path::to_owned).collect();
        Symbols { modules, files: HashMap::new() }
    }

    /// Of a replay: the files are the original ones.
    pub fn of_replay(ready: &Ready) -> Symbols {
        let traces = ready.lineage.traces().into_iter();
        let of = |trace| modules(trace, &ready.original, |path| ready.file(path));
        Symbols { modules: traces.flat_map(of).collect(), files: HashMap::new() }
    }

    /// Address and size of what a program calls `name` or `library:name`. The program comes first, then
    /// the libraries as they were mapped.
    pub fn find(&mut self, name: &str) -> Result<(u64, u64), String> {
        let (library, symbol) = match name.rsplit_once(':') {
            Some((library, symbol)) => (Some(library), symbol),
            None => (None, name),
        };
        let mut is_there = library.is_none();
        for module in &self.modules {
            let file = module.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if library.is_some_and(|library| library != file) {
                continue;
            }
            is_there = true;
            let functions =
                self.files.entry(module.path.clone()).or_insert_with_key(|path| read(path));
            let Some(functions) = functions else { continue };
            let Some(mapped) = functions.mapped(module.offset) else { continue };
            let mut found: Vec<(u64, u64)> = functions
                .named
                .iter()
                .filter(|(name, ..)| name == symbol)
                .map(|&(_, address, size)| (address, size))
                .collect();
            found.sort_unstable();
            found.dedup_by_key(|&mut (address, _)| address);
            let live =
                |address: u64| module.live.start.0.wrapping_add(address.wrapping_sub(mapped));
            match found[..] {
                [] => {}
                [(address, size)] => return Ok((live(address), size)),
                _ => {
                    let all: Vec<String> =
                        found.iter().map(|&(address, _)| format!("{:#x}", live(address))).collect();
                    return Err(format!("{file} has several `{symbol}`, at {}", all.join(", ")));
                }
            }
        }
        Err(match library {
            Some(library) if !is_there => format!("no file {library} was mapped with code"),
            Some(library) => format!("{library} has no symbol `{symbol}`"),
            None => format!("neither the program nor its libraries have a symbol `{symbol}`"),
        })
    }

    /// The file that is mapped at a live address, and the offset in it.
    pub fn file(&self, address: LiveAddr) -> Option<(&Path, u64)> {
        let module = self.modules.iter().rev().find(|m| m.live.contains(&address))?;
        Some((&module.path, module.offset + address.from_start(module.live.start)))
    }

    /// Where the functions lie whose names are `wanted`, ascending.
    pub fn ranges(&mut self, wanted: impl Fn(&str) -> bool) -> Vec<Range<LiveAddr>> {
        let mut ranges = Vec::new();
        for module in &self.modules {
            let path = module.path.clone();
            let functions = self.files.entry(path).or_insert_with_key(|path| read(path));
            let Some(functions) = functions.as_ref() else { continue };
            let Some(mapped) = functions.mapped(module.offset) else { continue };
            for (address, size, _) in functions.list.iter().filter(|f| wanted(&f.2)) {
                let from = address.checked_sub(mapped);
                let start = from.and_then(|from| module.live.start.0.checked_add(from));
                let Some(start) = start.map(LiveAddr).filter(|s| module.live.contains(s)) else {
                    continue;
                };
                ranges.push(start..start.plus(*size));
            }
        }
        ranges.sort_by_key(|range| (range.start, range.end));
        ranges.dedup();
        ranges
    }

    /// The function that contains a live address, as `name+0x12`.
    pub fn name(&mut self, address: LiveAddr) -> Option<String> {
        // The last mapping of a place counts.
        let module = self.modules.iter().rev().find(|m| m.live.contains(&address))?;
        let functions = self.files.entry(module.path.clone()).or_insert_with_key(|path| read(path));
        let functions = functions.as_ref()?;
        let from = address.from_start(module.live.start);
        let address = functions.mapped(module.offset)?.wrapping_add(from);
        let behind = functions.list.partition_point(|f| f.0 <= address);
        let (start, size, name) = functions.list.get(behind.checked_sub(1)?)?;
        let distance = address - start;
        (distance < (*size).max(1)).then(|| match distance {
            0 => name.clone(),
            _ => format!("{name}+{distance:#x}"),
        })
    }
}

/// What the trace says was mapped: `program` in place of the program, and what `file` says in place of another.
fn modules<'a>(
    trace: &'a Trace,
    program: &'a Path,
    file: impl Fn(&Path) -> PathBuf + 'a,
) -> impl Iterator<Item = Module> + 'a {
    use std::os::unix::ffi::OsStrExt;
    let events = trace.process_events.iter().filter_map(|placed| placed.event.as_ref());
    events.filter_map(move |event| {
        let Event::Map { start, len, offset, path, .. } = event else { return None };
        let path = match **path == *trace.program.as_os_str().as_bytes() {
            true => program.to_owned(),
            false => file(Path::new(std::ffi::OsStr::from_bytes(path))),
        };
        let live = *start..LiveAddr(start.0.saturating_add(*len));
        Some(Module { live, offset: *offset, path })
    })
}

impl Functions {
    /// Which address of the file's own a mapping begins with.
    fn mapped(&self, offset: u64) -> Option<u64> {
        match offset {
            // The whole image, from its first segment on.
            0 => Some(self.segments.first()?.2 / 4096 * 4096),
            at => {
                let (start, _, address) = self
                    .segments
                    .iter()
                    .find(|(start, size, _)| (*start / 4096 * 4096..start + size).contains(&at))?;
                Some(address.wrapping_add(at).wrapping_sub(*start))
            }
        }
    }
}

fn read(path: &Path) -> Option<Functions> {
    let bytes = std::fs::read(path).ok()?;
    let elf = ElfFile64::<object::Endianness>::parse(&*bytes).ok()?;
    let endian = elf.endian();
    let mut functions = Functions::default();
    let loads = elf.elf_program_headers().iter();
    functions.segments = loads
        .filter(|p| p.p_type(endian) == object::elf::PT_LOAD)
        .map(|p| (p.p_offset(endian), p.p_filesz(endian), p.p_vaddr(endian)))
        .collect();
    let named = elf.symbols().chain(elf.dynamic_symbols()).filter(|s| {
        let kind = matches!(s.kind(), SymbolKind::Text | SymbolKind::Data | SymbolKind::Unknown);
        kind && s.address() != 0 && s.is_definition()
    });
    functions.named =
        named.filter_map(|s| Some((s.name().ok()?.to_owned(), s.address(), s.size()))).collect();
    let symbols = elf.symbols().chain(elf.dynamic_symbols());
    functions.list = symbols
        .filter(|s| s.kind() == SymbolKind::Text && s.address() != 0)
        .filter_map(|s| Some((s.address(), s.size(), s.name().ok()?.to_owned())))
        .collect();
    functions.list.sort();
    functions.list.dedup_by_key(|f| f.0);
    Some(functions)
}
