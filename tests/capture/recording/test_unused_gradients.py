"""Modules with gradients that no optimizer uses are found among those that a step called."""

import gc

import pytest
import torch
from torch import nn

from profkit.capture.recording.unused_gradients import find_unused_gradients


@pytest.fixture(autouse=True)
def no_optimizers_of_other_tests() -> None:
    gc.collect()
    gc.freeze()


def called(**modules: nn.Module) -> dict[str, int]:
    """Return the addresses of modules and of the modules in them, by a name for each."""
    return {
        f"{name}{number}": id(module)
        for name, outer in modules.items()
        for number, module in enumerate(outer.modules())
    }


def networks() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), nn.Linear(4, 2)


def train(teacher: nn.Module, student: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    batch = torch.randn(3, 4)
    (student(batch) - teacher(batch)).square().sum().backward()
    optimizer.step()


def test_a_teacher_with_gradients_is_found_with_all_modules_in_it() -> None:
    teacher, student = networks()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    train(teacher, student, optimizer)
    (unused,) = find_unused_gradients(called(teacher=teacher, student=student))
    assert unused.name == "teacher"
    assert set(unused.modules) == {"teacher0", "teacher1", "teacher2", "teacher3"}
    assert unused.n_parameters == 4
    assert unused.bytes == 4 * (4 * 8 + 8 + 8 * 2 + 2)


def test_a_part_of_a_model_is_found_by_the_variable_of_the_model() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    (unused,) = find_unused_gradients(called(model=model))
    assert (unused.name, unused.modules) == ("model[0]", ["model1"])


def test_an_attribute_of_a_model_has_the_name_that_a_program_writes() -> None:
    model = nn.Module()
    model.backbone, model.head = nn.Linear(4, 8), nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    model.head(model.backbone(torch.randn(3, 4))).sum().backward()
    optimizer.step()
    (unused,) = find_unused_gradients(called(model=model))
    assert unused.name == "model.backbone"


def test_modules_below_a_container_that_nothing_calls_belong_to_the_outer_one() -> None:
    teacher, student = nn.Module(), nn.Linear(4, 2)
    teacher.layers = nn.ModuleList([nn.Linear(4, 2), nn.Linear(2, 2)])
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    batch = torch.randn(3, 4)
    predicted = teacher.layers[1](teacher.layers[0](batch))
    (student(batch) - predicted).square().sum().backward()
    optimizer.step()
    calls = {"outer": id(teacher), "first": id(teacher.layers[0]), "last": id(teacher.layers[1])}
    (unused,) = find_unused_gradients({**calls, "student": id(student)})
    assert (unused.name, set(unused.modules)) == ("teacher", {"outer", "first", "last"})


def test_a_frozen_teacher_is_not_found() -> None:
    teacher, student = networks()
    teacher.requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    train(teacher, student, optimizer)
    assert find_unused_gradients(called(teacher=teacher, student=student)) == []


def test_two_optimizers_use_the_gradients_of_both() -> None:
    teacher, student = networks()
    optimizers = [torch.optim.Adam(module.parameters()) for module in (teacher, student)]
    train(teacher, student, optimizers[0])
    optimizers[1].step()
    assert find_unused_gradients(called(teacher=teacher, student=student)) == []


def test_nothing_is_found_where_the_optimizer_has_copies_of_the_parameters() -> None:
    teacher, student = networks()
    copies = [parameter.detach().clone() for parameter in student.parameters()]
    optimizer = torch.optim.SGD(copies, lr=0.1)
    train(teacher, student, optimizer)
    assert find_unused_gradients(called(teacher=teacher, student=student)) == []


def test_nothing_is_found_without_an_optimizer_or_a_call() -> None:
    teacher, student = networks()
    (student(torch.randn(3, 4)) - teacher(torch.randn(3, 4))).sum().backward()
    assert find_unused_gradients(called(teacher=teacher, student=student)) == []
    assert find_unused_gradients({}) == []
