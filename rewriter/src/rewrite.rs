//! The pipeline: input -> image -> program -> translation -> layout -> file.

use crate::error::{unsupported, Error, Result};
use crate::input::Input;
use crate::layout::{tables, Places};
use crate::learn::Learned;
use crate::options::{Arguments, Dump};
use crate::runtime_blob::Runtime;
use crate::say;
use crate::selection::Selection;
use crate::summary::{Stages, Summary};
use crate::translate::{cut, inspect, translate, Inspection, Target, Translated, FIRST_WINDOW};
use crate::{dump, library, roots, write};
use lifter::discover::discover;
use lifter::image::Image;
use lifter::program::{Function, Program};
use std::path::{Path, PathBuf};

/// Inputs above this size get a progress bar.
const LARGE: usize = 8 << 20;
/// Room for the tables of each block, at the first attempt.
const ROOM_PER_BLOCK: u64 = 64;

/// Runs the command; prints what it is asked to print.
pub fn run(arguments: &Arguments) -> Result<()> {
    if let Some(folder) = arguments.output.as_deref().filter(|path| is_folder(path)) {
        // A program that is to be written to a folder gets the error that it deserves below.
        if crate::input::read_file(&arguments.input).is_ok_and(Input::is_shared_object) {
            return library_file(arguments, folder);
        }
    }
    if arguments.ignores_rules() && !arguments.quiet {
        say!("--only and --skip have no effect: nothing is recorded (--instrument none)");
    }
    let mut stages = Stages::default();
    let (input, mode) = read(&arguments.input, arguments.output.as_deref())?;
    let learned = Learned::read(&arguments.learn, &input)?;
    let mut image = roots::image(&input);
    image.code_pointers.extend(&learned.program);
    stages.done("read");
    let program = discover_with_bar(&image, input.bytes.len(), arguments.quiet);
    let selection = Selection::new(arguments.rules().map_err(Error::File)?);
    let choice = selection.of_program(&arguments.input, &input);
    let program = cut(program, &image, arguments.options(), choice.selected());
    let changing = writable_code(&input, &program)?;
    stages.done("discover");
    if let Some(stage) = arguments.dump {
        let functions = dump::select(&input, &program, arguments.function.as_deref())?;
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
                &program,
                functions,
                &image,
                choice.selected(),
                arguments.options(),
                |function, inspection| {
                    if done.is_ok() {
                        done = dump::print(&show(function, &inspection));
                    }
                },
            );
            done?;
        }
    }
    let Some(output) = &arguments.output else { return Ok(()) };

    let runtime = Runtime::embedded()?;
    let options = arguments.options();
    if let Some(at) = changing.filter(|_| !arguments.quiet && !arguments.dynamic()) {
        say!("the segment at {at:#x} is writable and executable: translated when it runs");
    }
    let dynamic = arguments.dynamic() || changing.is_some();
    let (paths, missing) = libraries_of(arguments, &input, &learned)?;
    let mut room = (1 << 20) + ROOM_PER_BLOCK * program.block_count() as u64;
    let (places, translated) = loop {
        let places = Places::new(&input, room);
        places.check(&input, places.code)?;
        let translated = if dynamic {
            Translated::default()
        } else {
            let target = Target {
                options,
                selected: choice.selected(),
                code: places.code,
                fixed: !input.pie,
                movable: false,
                first_window: FIRST_WINDOW,
            };
            translate(&program, &image, target)
        };
        let needed = translated.table_bytes();
        if needed <= room {
            break (places, translated);
        }
        room = needed;
    };
    stages.done("translate");
    let code = &translated.code;
    let libraries = library::packs(
        &paths,
        options,
        &selection,
        !input.pie,
        FIRST_WINDOW + translated.windows(),
        places.room_for_libraries(&input, code.len(), runtime.end()),
        &learned.libraries,
    );
    let looked = arguments.embeds_libraries() && missing.is_empty();
    selection.check(&arguments.input, &input, looked, arguments.quiet)?;
    stages.done("libraries");
    let front = write::program_headers_in_front(&input, &runtime, code.len(), &libraries);
    let tables = tables(&input, &translated, &libraries, options, dynamic, places, front, &choice);
    if tables.bytes.len() as u64 > room {
        return Err(Error::Internal("the tables are larger than planned".into()));
    }
    let bytes = write::assemble(&input, code, &libraries.bytes, tables, runtime, places)?;
    stages.done("layout");
    write::write_file(output, &bytes, mode)?;
    stages.done("write");

    let (elapsed, stages) = stages.finish();
    let summary = Summary {
        functions: program.functions.len(),
        blocks: program.block_count(),
        text_bytes: program.text_bytes,
        lifted_bytes: program.lifted_bytes,
        jump_tables: program.jump_tables,
        unresolved_indirect: program.unresolved_indirect,
        libraries: libraries.reports,
        libraries_missing: missing,
        units: translated.unit_addresses.len(),
        code_bytes: translated.code.len(),
        seconds: elapsed.as_secs_f64(),
        input_bytes: input.bytes.len(),
        output_bytes: bytes.len(),
        stages,
    };
    report(arguments, &summary)
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
    let selection = Selection::new(arguments.rules().map_err(Error::File)?);
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

/// The libraries whose translations travel in the output, and those that were not found.
fn libraries_of(
    arguments: &Arguments,
    input: &Input,
    learned: &Learned,
) -> Result<(Vec<PathBuf>, Vec<String>)> {
    if arguments.dynamic() {
        return Ok(Default::default());
    }
    let (mut paths, missing) = match arguments.embeds_libraries() {
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
    if arguments.embeds_libraries() {
        for path in learned.libraries.keys().filter(|path| library::Library::read(path).is_ok()) {
            if !paths.contains(path) {
                paths.push(path.clone());
            }
        }
    }
    Ok((paths, missing))
}

fn report(arguments: &Arguments, summary: &Summary) -> Result<()> {
    if !arguments.quiet {
        summary.print();
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
