//! The pipeline: input -> image -> program -> translation -> layout -> file.

use crate::coverage::{self, Coverage};
use crate::error::{unsupported, Error, Result};
use crate::input::Input;
use crate::layout::{tables, Places};
use crate::learn::Learned;
use crate::options::{Arguments, Dump};
use crate::runtime_blob::Runtime;
use crate::say;
use crate::selection::Selection;
use crate::shared::{Pack, SharedLibraries};
use crate::summary::{Stages, Summary};
use crate::translate::{inspect, Inspection, Target, FIRST_WINDOW};
use crate::variants::{Blocks, Variants};
use crate::{dump, library, returned, roots, write};
use abi::misses::Misses;
use abi::options::{DeadRegisters, Pointers};
use abi::start::Start;
use lifter::discover::discover;
use lifter::image::Image;
use lifter::program::{Function, Program};
use std::path::{Path, PathBuf};
use store::Store;

/// Inputs above this size get a progress bar.
const LARGE: usize = 8 << 20;
/// Room for the tables of a program that is translated when it runs.
const ROOM: u64 = 1 << 20;

/// Runs the command; prints what it is asked to print.
pub fn run(arguments: &Arguments) -> Result<()> {
    if let Some(folder) = arguments.output.as_deref().filter(|path| is_folder(path)) {
        // A program that is to be written to a folder gets the error that it deserves below.
        if crate::input::read_file(&arguments.input).is_ok_and(Input::is_shared_object) {
            return library_file(arguments, folder);
        }
    }
    let store = match arguments.shares_libraries() && arguments.output.is_some() {
        true => Store::from_environment(crate::BUILD)
            .inspect_err(|trouble| say!("deprewrite: {trouble}: the libraries are embedded"))
            .ok(),
        false => None,
    };
    let shared = store.as_ref().map(SharedLibraries::new);
    let Some(mut built) = build(arguments, shared.as_ref())? else { return Ok(()) };
    let Some(output) = &arguments.output else { return Ok(()) };
    write::write_file(output, &built.bytes, built.mode)?;
    built.stages.done("write");
    let (elapsed, stages) = built.stages.finish();
    report(arguments, &Summary { seconds: elapsed.as_secs_f64(), stages, ..built.summary })
}

/// An output that is not written yet.
pub struct Built {
    /// The file.
    pub bytes: Vec<u8>,
    /// The mode of the input.
    pub mode: std::fs::Permissions,
    /// What its traces call it ([`abi::image::ImageHeader::identity`]).
    pub identity: [u64; 2],
    /// The translations that it finds in the cache.
    pub packs: Vec<Pack>,
    /// What was done, but for the time that it took.
    pub summary: Summary,
    stages: Stages,
}

/// Makes an output, or prints a stage, or both. `shared`: where the translations of libraries are that
/// do not travel along; without, `--libraries cache` embeds them.
pub fn build(arguments: &Arguments, shared: Option<&SharedLibraries>) -> Result<Option<Built>> {
    if arguments.how.ignores_rules() && !arguments.quiet {
        say!("--only and --skip have no effect: nothing is recorded (--instrument none)");
    }
    let mut stages = Stages::default();
    let (input, mode) = read(&arguments.input, arguments.output.as_deref())?;
    let learned = Learned::read(&arguments.learn, &input)?;
    let mut image = roots::image(&input);
    image.code_pointers.extend(&learned.program);
    stages.done("read");
    let program = discover_with_bar(&image, input.bytes.len(), arguments.quiet);
    let mut options = arguments.options();
    if !options.leaves_memory_alone() {
        if let Some(at) = returned::looks_below(&program, &image) {
            options.process.dead_registers = DeadRegisters::Preserve;
            if !arguments.for_several {
                say!(
                    "the code at {:#x} reads the word that a return leaves below the stack pointer: rewritten with --dead-registers preserve",
                    at.0
                );
            }
        }
    }
    let selection = Selection::new(arguments.how.rules().map_err(Error::File)?);
    let choice = selection.of_program(&arguments.input, &input);
    let mut blocks = Blocks::new(program, &image, options, choice.selected());
    let program = &blocks.recorded;
    let changing = writable_code(&input, program)?;
    stages.done("discover");
    if let Some(stage) = arguments.dump {
        let functions = dump::select(&input, program, arguments.function.as_deref())?;
        let show = match stage {
            Dump::Cfg => {
                dump::print(&dump::cfg(functions))?;
                None
            }
            Dump::Live => Some(dump::live as fn(&Function, &Inspection) -> String),
            Dump::Plan => Some(dump::plan as _),
            Dump::Code => Some(dump::code as _),
        };
        if let Some(show) = show {
            let mut done = Ok(());
            inspect(
                program,
                functions,
                &image,
                choice.selected(),
                options,
                |function, inspection| {
                    if done.is_ok() {
                        done = dump::print(&show(function, &inspection));
                    }
                },
            );
            done?;
        }
    }
    if arguments.output.is_none() {
        return Ok(None);
    }

    let mut runtime = Runtime::embedded()?;
    let text = roots::executable_ranges(&input).iter().map(|[start, end, _]| end - start).sum();
    runtime.misses = Misses::new(text, !input.pie, options);
    if let Some(at) = changing.filter(|_| !arguments.dynamic() && !arguments.for_several) {
        say!("the segment at {at:#x} is writable and executable: translated when it runs");
    }
    let dynamic = arguments.dynamic() || changing.is_some();
    let (paths, missing) = libraries_of(arguments, &input, &learned)?;
    let (places, translated, of_program) = match dynamic {
        true => (Places::new(&input, ROOM), Variants::default(), Coverage::Everything),
        false => {
            let target = Target {
                options,
                selected: choice.selected(),
                code: 0,
                fixed: !input.pie,
                movable: false,
                first_window: FIRST_WINDOW,
                constant: input.constant(),
                read_only: &input.read_only(),
            };
            coverage::translate(&input, &image, &mut blocks, target, &learned, runtime.size())
        }
    };
    let program = &blocks.recorded;
    if let Some(why) = of_program.says().filter(|_| !arguments.for_several) {
        say!("{}: {why}", arguments.input.display());
    }
    stages.done("translate");
    let code = &translated.code();
    let shared = shared.filter(|_| arguments.shares_libraries());
    let (embedded, packs, reports) = match shared {
        None => (paths, Vec::new(), Vec::new()),
        Some(shared) => {
            let (packs, reports) = shared.packs(&paths, options, &selection, &learned.libraries);
            (Vec::new(), packs, reports)
        }
    };
    let mut libraries = library::packs(
        &embedded,
        options,
        &selection,
        !input.pie,
        FIRST_WINDOW + translated.recorded.windows(),
        places.room_for_libraries(&input, code.len(), runtime.size()),
        &learned.libraries,
    );
    libraries.reports.extend(reports);
    // Those of the cache may have been translated earlier.
    let looked = arguments.embeds_libraries() && missing.is_empty();
    if !arguments.for_several {
        selection.check(&arguments.input, &input, looked, arguments.quiet)?;
    }
    stages.done("libraries");
    let room_in_tables = write::room_in_tables(&input, &runtime, code.len(), &libraries);
    let folder = shared.map(SharedLibraries::folder);
    let folder = folder.as_deref();
    let start = arguments.how.start();
    let tables = tables(
        &input,
        &translated,
        &libraries,
        options,
        start,
        dynamic,
        places,
        room_in_tables,
        folder,
        &choice,
    );
    if start == Start::Main && tables.header.main == 0 {
        return Err(unsupported!(
            "where the program's function main is cannot be told (use --start entry)"
        ));
    }
    if tables.bytes.len() as u64 > places.code - places.tables {
        return Err(Error::Internal("the tables are larger than planned".into()));
    }
    let (bytes, identity) =
        write::assemble(&input, code, &libraries.bytes, tables, runtime, places, options)?;
    stages.done("layout");

    let summary = Summary {
        left: of_program.says(),
        processor: not_for_this_processor(
            options.process.pointers,
            std::is_x86_feature_detected!("avx512vl"),
        ),
        functions: program.functions.len(),
        blocks: program.block_count(),
        text_bytes: program.text_bytes,
        lifted_bytes: program.lifted_bytes,
        jump_tables: program.jump_tables,
        unresolved_indirect: program.unresolved_indirect,
        libraries: libraries.reports,
        libraries_missing: missing,
        units: translated.recorded.units.list.count,
        code_bytes: translated.code_len(),
        input_bytes: input.bytes.len(),
        output_bytes: bytes.len(),
        ..Summary::default()
    };
    Ok(Some(Built { bytes, mode, identity, packs, summary, stages }))
}

/// Whether the output is meant to be a folder.
fn is_folder(path: &Path) -> bool {
    path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/")
}

/// Translates a library on its own, into a file for any rewritten program that finds the folder in
/// `DEP_LIBRARIES`.
fn library_file(arguments: &Arguments, folder: &Path) -> Result<()> {
    if arguments.dump.is_some() {
        return Err(Error::File("--dump takes a program, not a library".into()));
    }
    if !arguments.learn.is_empty() || !arguments.with_library.is_empty() {
        let what = "--learn and --with-library take a program, not a library";
        return Err(Error::File(what.into()));
    }
    if arguments.dynamic() {
        return Err(Error::File("a library has nothing to write with --translate dynamic".into()));
    }
    let path = arguments.input.canonicalize();
    let path = path.map_err(|e| Error::file("read", &arguments.input, e))?;
    let library = library::Library::read(&path)?;
    let selection = Selection::new(arguments.how.rules().map_err(Error::File)?);
    let lifted = library.translate(arguments.options(), &selection, false, &[]);
    if lifted.windows() > abi::library::WINDOW_STEP {
        return Err(unsupported!("the library is too large: it has too many units"));
    }
    let (bytes, report) = lifted.pack(library.shared_window());
    std::fs::create_dir_all(folder).map_err(|e| Error::file("write", folder, e))?;
    let file = folder.join(library.file_name(arguments.options(), &selection.rules));
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    write::write_file(&file, &bytes, readable)?;
    if !arguments.quiet {
        report.print();
        say!("{}: {} bytes", file.display(), bytes.len());
    }
    if arguments.json {
        let text = serde_json::to_string(&report).map_err(|e| Error::Internal(e.to_string()))?;
        dump::print(&format!("{text}\n"))?;
    }
    Ok(())
}

/// The libraries that an output is made with, and that its translation takes notice of.
pub fn libraries(arguments: &Arguments) -> Result<Vec<PathBuf>> {
    let (input, _) = read(&arguments.input, None)?;
    let learned = Learned::read(&arguments.learn, &input)?;
    Ok(libraries_of(arguments, &input, &learned)?.0)
}

/// The libraries that are translated ahead of time, and those that were not found.
fn libraries_of(
    arguments: &Arguments,
    input: &Input,
    learned: &Learned,
) -> Result<(Vec<PathBuf>, Vec<String>)> {
    if arguments.dynamic() {
        return Ok(Default::default());
    }
    let wanted = arguments.embeds_libraries() || arguments.shares_libraries();
    let (mut paths, missing) = match wanted {
        true => {
            let interpreter = library::interpreter(input);
            library::needed(&arguments.input, interpreter.as_deref())?
        }
        false => Default::default(),
    };
    for path in &arguments.with_library {
        let real = path.canonicalize().map_err(|e| Error::file("read", path, e))?;
        library::Library::read(&real)
            .map_err(|e| Error::File(format!("--with-library {}: {e}", path.display())))?;
        if !paths.contains(&real) {
            paths.push(real);
        }
    }
    if wanted {
        for path in learned.libraries.keys().filter(|path| library::Library::read(path).is_ok()) {
            if !paths.contains(path) {
                paths.push(path.clone());
            }
        }
    }
    Ok((paths, missing))
}

/// Why the processor of this machine translates all of it again.
fn not_for_this_processor(pointers: Pointers, avx512vl: bool) -> Option<&'static str> {
    match (pointers, avx512vl) {
        (Pointers::Vector, false) => Some(
            "this processor has no AVX-512VL: here all code is translated again when it runs \
             (for this processor rewrite it without --pointers)",
        ),
        (Pointers::Xmm15, true) => Some(
            "this processor has AVX-512VL: here all code is translated again when it runs (for \
             this processor rewrite it without --pointers)",
        ),
        _ => None,
    }
}

fn report(arguments: &Arguments, summary: &Summary) -> Result<()> {
    match arguments.quiet {
        false => summary.print(),
        // Of several programs that are rewritten while one runs, its standard error is no place to say so.
        true if arguments.for_several => {}
        true => summary.print_slow(),
    }
    if arguments.time {
        summary.print_stages();
    }
    if arguments.json {
        let text = serde_json::to_string(summary).map_err(|e| Error::Internal(e.to_string()))?;
        dump::print(&format!("{text}\n"))?;
    }
    Ok(())
}

fn read(path: &Path, output: Option<&Path>) -> Result<(Input, std::fs::Permissions)> {
    if output.is_some_and(|output| write::same_file(path, output)) {
        return Err(Error::File("the output is the input; give another name".into()));
    }
    let bytes = crate::input::read_file(path)?;
    let metadata = std::fs::metadata(path).map_err(|e| Error::file("read", path, e))?;
    Ok((Input::parse(bytes)?, metadata.permissions()))
}

fn discover_with_bar(image: &Image, size: usize, quiet: bool) -> Program {
    // Drawn on stderr, and only if that is a terminal.
    let bar = if size >= LARGE && !quiet {
        indicatif::ProgressBar::new(1)
    } else {
        indicatif::ProgressBar::hidden()
    };
    let program = discover(image, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    program
}

/// The first segment that is writable and executable. One that holds no code will be filled at run
/// time: that is refused.
fn writable_code(input: &Input, program: &Program) -> Result<Option<u64>> {
    let mut first = None;
    for p in input.loads().filter(|p| p.is_executable() && p.is_writable()) {
        let lifted = program.functions.iter().any(|f| (p.address..p.end()).contains(&f.start.0));
        if !lifted {
            return Err(unsupported!(
                "the segment at {:#x} is filled with code at run time: the program is packed",
                p.address
            ));
        }
        first.get_or_insert(p.address);
    }
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_for_other_processors_is_told() {
        let said = |pointers, avx512vl| not_for_this_processor(pointers, avx512vl).is_some();
        assert!(said(Pointers::Vector, false) && said(Pointers::Xmm15, true));
        assert!(!said(Pointers::Vector, true) && !said(Pointers::Xmm15, false));
        assert!(!said(Pointers::ThreadBlock, true) && !said(Pointers::ThreadBlock, false));
    }
}
