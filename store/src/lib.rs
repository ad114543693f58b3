//! The cache: what was made once, for all who need it. It knows nothing of rewriting.
//!
//! ```text
//! ROOT                      $DEP_CACHE, $XDG_CACHE_HOME/deprewrite or $HOME/.cache/deprewrite
//!     VERSION/              whatever the caller says its results depend on, build included
//!         CACHEDIR.TAG      says that the folder is ours to remove
//!         programs/KEY/NAME an entry (any path: the caller chooses)
//!         libraries/FILE    another
//!         records/HASH      what an entry has to be: size, inode, checksum, and the caller's note
//!         locks/HASH        held while an entry is made; the kernel releases it with the process
//!         memo/HASH         what is known of a file outside, by its stat
//!         new/              entries that are being written
//! ```
//!
//! * [`Store::open`] makes the folders, or says in one line why there is no cache ([`Trouble`]).
//! * [`Store::find`] answers from the cache; [`Store::find_or_make`] makes what is missing or damaged,
//!   once, however many processes ask at the same time. What cannot be stored comes back
//!   ([`Failed::NotStored`]), so that the caller can go on without the cache.
//! * [`Store::holds`] asks of an entry that was found before whether it is still the same: one stat.
//! * [`Store::recall`] and [`Store::remember`] keep what follows from a file's stat ([`Stamp`]);
//!   [`Store::content`] is the content hash of a file, of which a file is read once.
//! * [`Store::lock`] is a lock for whatever else must happen one at a time.
//! * [`list`], [`clear`]: of all versions in a cache's root.
//!
//! An entry appears by a rename, when it is complete and nobody has it open for writing. Its record is
//! written before it, so an entry without a record, or of another size or inode than its record says,
//! was damaged or copied: its checksum decides, and what fails is made again. Entries are never changed,
//! so whoever has mapped or started one keeps it when it is thrown away.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod entry;
mod evict;
mod hash;
mod listing;
mod lock;
mod memo;
mod record;
mod root;
mod stamp;

pub use entry::{Content, Entry, Failed, Place};
pub use evict::RECENT;
pub use hash::{Hash, Hasher};
pub use listing::{clear, list, Cleared, Listed};
pub use lock::Lock;
pub use root::{limit, root, Store, Trouble, DEFAULT_LIMIT};
pub use stamp::Stamp;
