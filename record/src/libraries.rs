//! Libraries that a run has opened: translated for the next one.

use crate::prepare::arguments_for;
use rewriter::library::Report;
use rewriter::selection::Selection;
use rewriter::shared::{Pack, SharedLibraries};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use store::Store;

/// Translates libraries into the cache for programs that are rewritten with `options`, if they are not
/// there yet. `more`: addresses in a library at which a run has found code that was not translated.
/// What cannot be translated is left to run time, as its report says.
pub fn translate(
    store: &Store,
    options: &[String],
    libraries: &[PathBuf],
    more: &BTreeMap<PathBuf, Vec<u64>>,
) -> Result<(Vec<Pack>, Vec<Report>), String> {
    let arguments = arguments_for(options, Path::new("library"))?;
    let selection = Selection::new(arguments.how.rules()?);
    Ok(SharedLibraries::new(store).packs(libraries, arguments.options(), &selection, more))
}
