//! The pipeline: input -> image -> program -> translation -> layout -> file.

use crate::error::{unsupported, Error, Result};
use crate::input::Input;
use crate::layout::{tables, Places};
use crate::options::{Arguments, Dump};
use crate::runtime_blob::Runtime;
use crate::summary::{Stages, Summary};
use crate::translate::{inspect, translate, Inspection, Translated};
use crate::{dump, roots, write};
use lifter::discover::{discover, Function, Program};
use lifter::image::Image;
use std::io::Read as _;
use std::path::Path;

/// Larger files are not read: they do not fit into memory together with what is made of them.
const LARGEST_FILE: u64 = 4 << 30;
/// Inputs above this size get a progress bar.
const LARGE: usize = 8 << 20;
/// Room for the tables of each block, at the first attempt.
const ROOM_PER_BLOCK: u64 = 64;

/// Runs the command; prints what it is asked to print.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut stages = Stages::default();
    let (input, mode) = read(&arguments.input, arguments.output.as_deref())?;
    let image = roots::image(&input);
    stages.done("read");
    let program = discover_with_bar(&image, input.bytes.len(), arguments.quiet);
    check_lifted(&input, &program)?;
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
            inspect(&program, functions, &image, arguments.options(), |function, inspection| {
                if done.is_ok() {
                    done = dump::print(&show(function, &inspection));
                }
            });
            done?;
        }
    }
    let Some(output) = &arguments.output else { return Ok(()) };

    let runtime = Runtime::embedded()?;
    let mut room = (1 << 20) + ROOM_PER_BLOCK * program.block_count() as u64;
    let (places, translated, tables) = loop {
        let places = Places::new(&input, room);
        places.check(&input, places.code)?;
        let translated = if arguments.dynamic() {
            Translated::default()
        } else {
            translate(&program, &image, arguments.options(), places.code, !input.pie)
        };
        let headers = write::program_header_count(&input, &runtime, translated.code.len());
        let options = arguments.options();
        let tables = tables(&input, &translated, options, arguments.dynamic(), places, headers);
        if tables.bytes.len() as u64 <= room {
            break (places, translated, tables);
        }
        room = 2 * tables.bytes.len() as u64;
    };
    stages.done("translate");
    let bytes = write::assemble(&input, &translated.code, tables, runtime, places)?;
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
        units: translated.unit_addresses.len(),
        code_bytes: translated.code.len(),
        seconds: elapsed.as_secs_f64(),
        input_bytes: input.bytes.len(),
        output_bytes: bytes.len(),
        stages,
    };
    report(arguments, &summary)
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
        println!("{text}");
    }
    Ok(())
}

fn read(path: &Path, output: Option<&Path>) -> Result<(Input, std::fs::Permissions)> {
    let metadata = std::fs::metadata(path).map_err(|e| Error::file("read", path, e))?;
    if !metadata.is_file() {
        return Err(Error::file("read", path, "not a regular file"));
    }
    if output.is_some_and(|output| write::same_file(path, output)) {
        return Err(Error::File("the output is the input; give another name".into()));
    }
    let failed = |e: std::io::Error| Error::file("read", path, e);
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    (&mut file)
        .take(crate::elf::FILE_HEADER_SIZE as u64)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    Input::check_start(&bytes)?;
    let size = metadata.len();
    if size > LARGEST_FILE {
        return Err(unsupported!("a file of {size} bytes; the limit is 4 GiB (try strip -g)"));
    }
    file.read_to_end(&mut bytes).map_err(failed)?;
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

/// A segment that is writable and executable and holds no code will be filled at run time.
fn check_lifted(input: &Input, program: &Program) -> Result<()> {
    for p in input.loads().filter(|p| p.is_executable() && p.is_writable()) {
        let lifted = program.functions.iter().any(|f| (p.address..p.end()).contains(&f.start));
        if !lifted {
            return Err(unsupported!(
                "the segment at {:#x} is filled with code at run time: the program is packed",
                p.address
            ));
        }
    }
    Ok(())
}
