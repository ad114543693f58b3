//! Lifted control-flow graphs, plans and code of the corpus generator's objects, as snapshots.

use abi::options::Options;
use lifter::discover::discover;
use lifter::image::{Image, Segment};
use object::{Object as _, ObjectSection as _};
use rewriter::dump;
use rewriter::translate::inspect;

/// Where the objects' text is looked at.
const BASE: u64 = 0x1000;

#[test]
fn generated_objects_are_lifted_planned_and_woven_as_recorded() {
    for object in corpus::generated::objects() {
        let file = object::File::parse(&*object.elf).expect("an object");
        let mut text = Vec::new();
        for section in file.sections().filter(|s| s.kind() == object::SectionKind::Text) {
            text.resize(text.len().next_multiple_of(16), 0xcc);
            text.extend_from_slice(section.data().expect("its bytes"));
        }
        let image = Image {
            segments: vec![Segment { address: BASE, bytes: &text, executable: true }],
            entry: BASE,
            functions: Vec::new(),
            code_pointers: Vec::new(),
            fixed: true,
        };
        let program = discover(&image, &mut |_, _| ());
        assert!(!program.functions.is_empty(), "{}: nothing was found", object.name);
        let mut out = dump::cfg(&program.functions);
        let options = Options::default();
        inspect(
            &program,
            &program.functions,
            &image,
            abi::selection::Selected::EVERYTHING,
            options,
            |function, inspection| {
                out.push_str("\n-- plan\n");
                out.push_str(&dump::plan(function, &inspection));
                out.push_str("\n-- code\n");
                out.push_str(&dump::code(function, &inspection));
            },
        );
        insta::assert_snapshot!(object.name, out);
    }
}
