use super::*;
use crate::{clear, list};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

fn store(folder: &Path) -> Store {
    Store::open(folder, "1", 1 << 30).expect("a cache")
}

fn place(name: &str) -> Place {
    Place { id: format!("programs/{name}"), file: format!("programs/{name}/x").into() }
}

fn content(bytes: &[u8]) -> Content {
    Content { bytes: bytes.to_vec(), executable: true, note: Value::Null }
}

/// Finds the entry or makes it of `bytes`.
fn get(store: &Store, name: &str, bytes: &[u8]) -> Entry {
    let made = store.find_or_make(&place(name), || Ok::<_, ()>(content(bytes)));
    made.expect("an entry")
}

/// Long ago.
fn forget(path: &Path, age: u64) {
    let time = SystemTime::now() - Duration::from_secs(age);
    let file = File::open(path).expect("opens");
    file.set_times(std::fs::FileTimes::new().set_accessed(time)).expect("sets the time");
}

#[test]
fn what_was_made_is_found_and_read_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(folder.path());
    let made = get(&store, "a", b"one");
    assert!(made.made);
    let found = get(&store, "a", b"two");
    assert!(!found.made && found.path == made.path && found.stamp.same_contents(&made.stamp));
    assert_eq!(std::fs::read(&found.path).expect("reads"), b"one");
    let mode = std::fs::metadata(&found.path).expect("a file").permissions().mode();
    assert_eq!(mode & 0o7777, 0o555);
    assert!(store.holds(&found.path, &found.stamp));
    assert_eq!(std::fs::read_dir(store.new_folder()).expect("lists").count(), 0);
    assert_eq!(std::fs::read_dir(store.folder().join("locks")).expect("lists").count(), 0);
}

#[test]
fn a_link_and_a_use_leave_an_entry_what_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(folder.path());
    let made = get(&store, "a", b"one");
    std::fs::hard_link(&made.path, folder.path().join("link")).expect("links");
    forget(&made.path, 100_000);
    assert!(store.holds(&made.path, &made.stamp));
    let last = std::fs::metadata(&made.path).expect("a file").accessed().expect("a time");
    assert!(last.elapsed().expect("the past") < Duration::from_secs(1000));
}

#[test]
fn damage_is_noticed_and_repaired() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(folder.path());
    type Damage = fn(&Path, &Store);
    let damages: [(&str, Damage); 5] = [
        ("truncated", |path, _| {
            std::fs::set_permissions(path, Permissions::from_mode(0o644)).expect("mode");
            File::options().write(true).open(path).and_then(|f| f.set_len(1)).expect("cuts");
        }),
        ("changed", |path, _| {
            std::fs::set_permissions(path, Permissions::from_mode(0o644)).expect("mode");
            std::fs::write(path, b"0ne").expect("writes");
        }),
        ("replaced", |path, _| {
            std::fs::remove_file(path).expect("removes");
            std::fs::write(path, b"0ne").expect("writes");
        }),
        ("missing", |path, _| std::fs::remove_file(path).expect("removes")),
        ("no record", |_, store| {
            std::fs::remove_dir_all(store.folder().join("records")).expect("removes");
        }),
    ];
    for (what, damage) in damages {
        let entry = get(&store, "a", b"one");
        damage(&entry.path, &store);
        if what != "no record" {
            assert!(!store.holds(&entry.path, &entry.stamp), "{what}");
        }
        assert_eq!(store.find("programs/a"), None, "{what}");
        let again = get(&store, "a", b"one");
        assert!(again.made, "{what}");
        assert_eq!(std::fs::read(&again.path).expect("reads"), b"one", "{what}");
    }
}

#[test]
fn a_copy_of_the_cache_is_as_good() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(folder.path());
    let made = get(&store, "a", b"one");
    // Another inode with the same contents.
    let bytes = std::fs::read(&made.path).expect("reads");
    std::fs::remove_file(&made.path).expect("removes");
    std::fs::write(&made.path, bytes).expect("writes");
    let found = get(&store, "a", b"two");
    assert!(!found.made && found.stamp.ino != 0);
    // And its stamp is known from now on.
    let record: Record = record::read(&store.record_path("programs/a")).expect("a record");
    assert_eq!(record.stamp, found.stamp);
}

#[test]
fn all_who_ask_at_once_get_what_one_makes() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(folder.path());
    let made = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let make = || {
                    made.fetch_add(1, SeqCst);
                    std::thread::sleep(Duration::from_millis(20));
                    Ok::<_, ()>(content(b"one"))
                };
                store.find_or_make(&place("a"), make).expect("an entry");
            });
        }
    });
    assert_eq!(made.into_inner(), 1);
}

#[test]
fn what_cannot_be_made_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(folder.path());
    let failed = store.find_or_make(&place("a"), || Err("why"));
    assert!(matches!(failed, Err(Failed::NotMade("why"))));
    assert!(list(folder.path()).is_empty());
    assert!(get(&store, "a", b"one").made);
}

#[test]
fn what_cannot_be_stored_comes_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(folder.path());
    // A file where the entry's folder has to be.
    std::fs::write(store.folder().join("programs"), "").expect("writes");
    let failed = store.find_or_make(&place("a"), || Ok::<_, ()>(content(b"one")));
    let Err(Failed::NotStored(trouble, Content { bytes, .. })) = failed else { panic!("stored") };
    assert_eq!(bytes, b"one");
    assert!(trouble.to_string().starts_with("the cache cannot be used: "), "{trouble}");
    assert_eq!(std::fs::read_dir(store.new_folder()).expect("lists").count(), 0);
}

#[test]
fn the_longest_unused_goes_first_and_the_newest_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let old = Store::open(folder.path(), "0", 1 << 30).expect("a cache");
    let large = vec![7; 1 << 20];
    let first = get(&old, "old", &large);
    let store = Store::open(folder.path(), "1", 5 << 19).expect("a cache");
    let second = get(&store, "a", &large);
    // 2 MiB of 2.5.
    assert!(first.path.exists() && second.path.exists());
    forget(&first.path, 1000);
    forget(&second.path, 2000);
    let running = File::open(&second.path).expect("opens");
    let third = get(&store, "b", &large);
    // 3 MiB are too much, 2 are not.
    assert!(first.path.exists() && !second.path.exists() && third.path.exists());
    let mut still = Vec::new();
    std::io::Read::read_to_end(&mut &running, &mut still).expect("reads");
    assert_eq!(still, large);
    assert_eq!(list(folder.path()).len(), 2);
    // All were used just now: they stay although it is too much.
    assert!(old.find("programs/old").is_some());
    get(&store, "c", &large);
    assert_eq!(list(folder.path()).len(), 3);
}

#[test]
fn clearing_removes_what_is_ours() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("theirs")).expect("makes");
    std::fs::write(folder.path().join("theirs/file"), "").expect("writes");
    let store = store(folder.path());
    get(&store, "a", b"one");
    let cleared = clear(folder.path()).expect("clears");
    assert_eq!(cleared.entries, 1);
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("lists").flatten().collect();
    assert_eq!(left.len(), 1);
    assert!(folder.path().join("theirs/file").exists());
    // Whoever has it open goes on, although every folder is gone.
    assert!(get(&store, "a", b"one").made);
    assert!(store.find("programs/a").is_some());
    // There is a cache again only for those who opened it since.
    assert!(Store::open(folder.path(), "1", 0).is_ok());
    assert_eq!(list(folder.path()).len(), 1);
    assert_eq!(clear(&folder.path().join("nowhere")).expect("nothing"), Default::default());
}

#[test]
fn memos_are_of_settled_files_and_go_with_their_stamp() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(folder.path());
    let path = folder.path().join("file");
    std::fs::write(&path, "one").expect("writes");
    let stamp = Stamp::of(&std::fs::metadata(&path).expect("a file"));
    let now = SystemTime::now();
    store.remember(&stamp, &[b"x"], now, &1);
    assert_eq!(store.recall::<u32>(&stamp, &[b"x"]), None);
    let later = now + Duration::from_secs(3);
    store.remember(&stamp, &[b"x"], later, &1);
    assert_eq!(store.recall(&stamp, &[b"x"]), Some(1));
    assert_eq!(store.recall::<u32>(&stamp, &[b"y"]), None);
    let changed = Stamp { mtime: stamp.mtime + 1, ..stamp };
    assert_eq!(store.recall::<u32>(&changed, &[b"x"]), None);
    // The content hash of a young file is right each time.
    let hash = |path: &Path| store.content(&File::open(path).expect("opens")).expect("a hash");
    assert_eq!(hash(&path), Hash::of(b"one"));
    std::fs::write(&path, "two").expect("writes");
    assert_eq!(hash(&path), Hash::of(b"two"));
}
