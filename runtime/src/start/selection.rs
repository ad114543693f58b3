//! What is recorded, at start: the rewriter's rules and those of the environment.

use crate::code::packs::recorded;
use crate::code::selection::{names_of_program, Selection};
use crate::code::span::Span;
use crate::start::stack::{at, program_path, Start};
use crate::start::trace::real_path;
use abi::image::ImageHeader;
use abi::options::{ControlFlow, Options};
use abi::selection::Rules;
use alloc::string::String;

/// What was decided.
pub struct Chosen {
    pub selection: Selection,
    /// Key of the rewriter's rules.
    pub rules: u64,
    /// All rules as the trace says them.
    pub text: String,
    /// The program's ahead-of-time code records other code than is selected.
    pub reselected: bool,
}

/// Reads the rules; ends the process if they make no sense.
///
/// # Safety
/// The rewriter made the header, and what it names is mapped at the window.
pub unsafe fn choose(start: &Start, header: &ImageHeader, window: u64, options: Options) -> Chosen {
    // SAFETY: as promised.
    let (text, own) = unsafe {
        let text = (window + header.rules) as *const u8;
        let text = core::slice::from_raw_parts(text, header.rules_len as usize);
        (text, recorded(window + header.selection, header.selection_count))
    };
    let Some(rules) = core::str::from_utf8(text).ok().and_then(Rules::from_text) else {
        crate::die!("damaged output file: what it records is not valid");
    };
    let environment = of_environment(start, options);
    let text = rules.to_text() + &named(&environment);
    let key = rules.key();
    let mut selection = Selection::new(rules, environment, options.recording);
    let span = Span::new(window + header.image_start, window + header.image_end);
    let mut real = [0u8; 4096];
    let original = start.environment("DEP_EXE").map_or(&[][..], |path| path.to_bytes());
    let names = names_of_program([original, program_path(start), real_path(start, &mut real)]);
    let alone = start.environment("DEP_RECORDER").is_none();
    let reselected = !selection.add_program(span.whole_pages(), window, own, &names, alone);
    Chosen { selection, rules: key, text, reselected }
}

/// The rules in `DEP_ONLY` and `DEP_SKIP`.
fn of_environment(start: &Start, options: Options) -> Rules {
    if start.get(at::SECURE).unwrap_or(0) != 0 {
        return Rules::default();
    }
    let text = |name| match start.environment(name).map(core::ffi::CStr::to_str) {
        None => "",
        Some(Ok(text)) => text,
        Some(Err(_)) => crate::die!("{name}: not UTF-8"),
    };
    let rules = match Rules::parse(text("DEP_ONLY"), text("DEP_SKIP")) {
        Ok(rules) => rules,
        Err(why) => crate::die!("DEP_ONLY, DEP_SKIP: {why}"),
    };
    if rules.is_everything() {
        return rules;
    }
    let recording = options.recording;
    if !recording.records() {
        crate::say!(
            "DEP_ONLY and DEP_SKIP have no effect: the program was rewritten to record nothing"
        );
        return Rules::default();
    }
    if recording.inputs() {
        crate::die!(
            "DEP_ONLY, DEP_SKIP: a recording of inputs has all of them: select when it is listed"
        );
    }
    if recording.undo() {
        crate::die!("DEP_ONLY, DEP_SKIP: an undo log with holes cannot be undone (rewrite the program with --instrument dep)");
    }
    if recording.control_flow == ControlFlow::Bits {
        crate::die!("DEP_ONLY, DEP_SKIP: not possible with the format bits (rewrite the program with --control-flow tags)");
    }
    rules
}

/// The rules of the environment, a line each.
fn named(rules: &Rules) -> String {
    let mut named = String::new();
    for line in rules.to_text().lines() {
        let (name, selector) = match line.split_once(' ') {
            Some(("only", selector)) => ("DEP_ONLY ", selector),
            Some((_, selector)) => ("DEP_SKIP ", selector),
            None => continue,
        };
        named.extend([name, selector, "\n"]);
    }
    named
}
